// SPDX-License-Identifier: Apache-2.0
#include "residency/journal_marks.h"

#include <array>

#include "record/verified_copy.h"

namespace cistern::residency {
namespace {

// Never 0, which is there from before anything checked the mark.
std::uint64_t CheckOf(std::uint64_t id, const tier::JournalMark& mark) {
  const std::array<std::uint64_t, 3> words = {id, mark.state, mark.bytes};
  return record::Crc32c(words.data(), sizeof(words)) | std::uint64_t{1} << 32;
}

}  // namespace

bool JournalMarks::IsOurs() const {
  return context_.words.Load(&arena_.header()->journal_id) == context_.journal.id();
}

tier::JournalMark JournalMarks::OfMemory() const {
  if (!IsOurs()) return {};
  const tier::JournalMark mark{context_.words.Load(&arena_.header()->journal_state),
                               context_.words.Load(&arena_.header()->journal_bytes)};
  const std::uint64_t check = context_.words.Load(&arena_.header()->journal_check);
  return check == 0 || check == CheckOf(context_.journal.id(), mark) ? mark : tier::JournalMark{};
}

bool JournalMarks::MemoryIsAnothers() const {
  return !IsOurs() && context_.words.Load(&arena_.header()->journal_id) != 0;
}

bool JournalMarks::MemoryMissedDrops() const {
  return IsOurs() && context_.words.Load(&arena_.header()->journal_ended) < context_.journal.ended();
}

void JournalMarks::Follow() {
  context_.journal.OnChange([this] { NoteInMemory(); });
}

// A kill may come between any two stores. A mark that is too low for a moment claims nothing that is not so.
void JournalMarks::NoteInMemory() {
  arena::ArenaHeader* header = arena_.header();
  const bool ours = IsOurs();
  if (!ours || context_.words.Load(&header->journal_ended) < context_.journal.ended()) {
    context_.words.StoreRelease(&header->journal_ended, context_.journal.ended());
  }
  const tier::JournalMark mark = context_.journal.mark();
  if (ours && mark <= OfMemory()) return;
  if (!ours || context_.words.Load(&header->journal_state) != mark.state) {
    context_.words.StoreRelease(&header->journal_bytes, 0);
    context_.words.StoreRelease(&header->journal_state, mark.state);
    context_.words.StoreRelease(&header->journal_id, context_.journal.id());
  }
  context_.words.StoreRelease(&header->journal_bytes, mark.bytes);
  context_.words.StoreRelease(&header->journal_check, CheckOf(context_.journal.id(), mark));
}

Task<void> JournalMarks::TellMedia() {
  const std::uint64_t outs = lower_.outs();
  telling_ = outs;
  const tier::JournalMark mark = context_.journal.mark();
  const Status told = co_await lower_->Mark(mark);
  if (outs != lower_.outs()) co_return;  // others are told anew
  // A device that fails every time goes out of service by itself.
  if (told.ok()) told_ = mark;
  next_ = context_.clock.Now().PlusUs(kTellUs);
  telling_.reset();
}

}  // namespace cistern::residency
