// SPDX-License-Identifier: Apache-2.0
// What memory and the media of the lower tier say of the journal, so that an older copy of any of them that
// somebody restored is noticed (docs/formats/journal.md). The arena's header is as far as the journal before
// anyone is told that something is durable; media follow it within kTellUs.
#pragma once

#include <cstdint>
#include <optional>

#include "base/task.h"
#include "residency/context.h"
#include "residency/lower_tier.h"

namespace cistern::residency {

class JournalMarks final {
 public:
  static constexpr std::int64_t kTellUs = 100'000;

  JournalMarks(const StoreContext& context, LowerTier& lower)
      : context_(context), arena_(context.slots.arena()), lower_(lower) {}
  ~JournalMarks() { context_.journal.OnChange(nullptr); }
  JournalMarks(const JournalMarks&) = delete;
  JournalMarks& operator=(const JournalMarks&) = delete;

  Executor& executor() { return context_.executor; }

  // ---- of a start, before the journal's ----
  // The mark that memory has of this journal; none where it was used with another, or with none, or where it
  // does not check: one flipped bit would make every start cold.
  tier::JournalMark OfMemory() const;
  // It was used with another journal, and holds nothing that this one knows.
  bool MemoryIsAnothers() const;
  // Tombstones have ended since memory was used last: it is an older copy, or was not there meanwhile, and
  // may hold what they were for.
  bool MemoryMissedDrops() const;

  // From the journal's start on: memory follows it.
  void Follow();
  // After the journal's start, then as often as due() is true.
  Task<void> TellMedia();
  bool due() const {
    return telling_ != lower_.outs() && lower_.present() && told_ != context_.journal.mark() &&
           context_.clock.Now() >= next_;
  }

 private:
  void NoteInMemory();
  bool IsOurs() const;

  const StoreContext context_;
  const arena::ArenaSpace arena_;
  LowerTier& lower_;
  tier::JournalMark told_;
  Instant next_;
  std::optional<std::uint64_t> telling_;  // LowerTier::outs when it began
};

}  // namespace cistern::residency
