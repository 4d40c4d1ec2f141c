// SPDX-License-Identifier: Apache-2.0
#include "residency/journal_marks.h"

namespace cistern::residency {

bool JournalMarks::IsOurs() const { return words_.Load(&arena_.header()->journal_id) == journal_.id(); }

tier::JournalMark JournalMarks::OfMemory() const {
  if (!IsOurs()) return {};
  return {words_.Load(&arena_.header()->journal_state), words_.Load(&arena_.header()->journal_bytes)};
}

bool JournalMarks::MemoryIsAnothers() const {
  return !IsOurs() && words_.Load(&arena_.header()->journal_id) != 0;
}

bool JournalMarks::MemoryMissedDrops() const {
  return IsOurs() && words_.Load(&arena_.header()->journal_ended) < journal_.ended();
}

void JournalMarks::Follow() {
  journal_.OnChange([this] { NoteInMemory(); });
}

// A kill may come between any two stores. A mark that is too low for a moment claims nothing that is not so.
void JournalMarks::NoteInMemory() {
  arena::ArenaHeader* header = arena_.header();
  const bool ours = IsOurs();
  if (!ours || words_.Load(&header->journal_ended) < journal_.ended()) {
    words_.StoreRelease(&header->journal_ended, journal_.ended());
  }
  const tier::JournalMark mark = journal_.mark();
  if (ours && mark <= OfMemory()) return;
  if (!ours || words_.Load(&header->journal_state) != mark.state) {
    words_.StoreRelease(&header->journal_bytes, 0);
    words_.StoreRelease(&header->journal_state, mark.state);
    words_.StoreRelease(&header->journal_id, journal_.id());
  }
  words_.StoreRelease(&header->journal_bytes, mark.bytes);
}

Task<void> JournalMarks::TellMedia() {
  telling_ = true;
  const tier::JournalMark mark = journal_.mark();
  co_await lower_->Mark(mark);
  told_ = mark;
  next_ = clock_.Now().PlusUs(kTellUs);
  telling_ = false;
}

}  // namespace cistern::residency
