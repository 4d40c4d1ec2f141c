// SPDX-License-Identifier: Apache-2.0
// Turns of sessions to come, as callers tell of them with a prompt (PromptHints::next_turn_ms): the prompt's
// blocks that lie below memory are fetched shortly before, as much sooner as they take to be read, and held
// in memory until the turn has come or is late (policy/fetch_ahead.h). What was held for one that did not
// come is the next to leave.
//
// One block is fetched at a time, so that a read that a client waits for waits for one transfer of these at
// most. What is held leaves after all else and not never: no put, lease or resize is refused for its sake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "policy/fetch_ahead.h"
#include "residency/context.h"
#include "residency/fetcher.h"
#include "residency/lower_tier.h"
#include "residency/residents.h"

namespace cistern::residency {

class AwaitedTurns final {
 public:
  AwaitedTurns(const StoreContext& context, LowerTier& lower, Residents& residents, Fetcher& fetcher)
      : context_(context), lower_(lower), residents_(residents), fetcher_(fetcher) {}
  AwaitedTurns(const AwaitedTurns&) = delete;
  AwaitedTurns& operator=(const AwaitedTurns&) = delete;

  Executor& executor() { return context_.executor; }

  // A prompt whose last whole block is `last` has its next turn in so many milliseconds, 1 at least. Past
  // kMost the one that is due last is given up. No effect without a lower tier.
  void Tell(catalog::TreeId tree, catalog::KeyHash last, std::uint32_t told_ms);
  // A prompt goes on from this block, the last whole one of a prompt whose next turn it is.
  bool Awaits(catalog::KeyHash last) const { return !by_last_.empty() && FindTurn(last) != by_last_.end(); }
  // Goes on with what is awaited, where a device that left service holds up who did.
  void Start();
  // That turn has come, if one is awaited: nothing is held for it any more.
  Task<void> Came(catalog::KeyHash last);

  // What is held past half of memory, which has become smaller, may leave; true: it was one.
  bool TrimOne();
  // Nothing is fetched from now on.
  void Stop();

  std::size_t size() const { return due_.size(); }

  static constexpr std::size_t kMost = 16'384;

 private:
  static constexpr std::size_t kMostBlocks = 262'144;  // of a prompt
  static constexpr std::uint64_t kStoodMs = 1'000;     // behind its time, past which this node stood still

  enum class Next : std::uint8_t { kAskSize, kFetch, kLapse };
  struct Turn {
    catalog::TreeId tree = catalog::kNoId;
    catalog::KeyHash last = 0;
    std::uint32_t told_ms = 0;
    std::uint64_t asked_ms = 0;
    policy::FetchAhead::Window window{};  // from then on
    std::uint64_t since_ms = 0;           // its block was used by nobody else from then on
    Next next = Next::kAskSize;           // what is to be done for it when it is due
    bool over = false;
    std::shared_ptr<PendingFetch> fetch;  // of it, that is on its way
    bool fetched = true;                  // nothing is left to be fetched
    std::vector<catalog::RecordHandle> held;

    std::uint64_t until_ms() const { return asked_ms + window.until_ms; }
  };
  using TurnPtr = std::shared_ptr<Turn>;
  using Due = std::multimap<std::uint64_t, TurnPtr>;  // by when there is something to be done for it

  using ByLast = std::unordered_map<catalog::KeyHash, Due::iterator>;
  ByLast::const_iterator FindTurn(catalog::KeyHash last) const;
  void Await(TurnPtr turn, std::uint64_t at_ms);
  TurnPtr Take(Due::iterator at);
  void GiveUp(Due::iterator at);
  Task<void> Run();
  void Again(Due::iterator at, std::uint64_t at_ms, Next next);
  Task<void> AskSize(TurnPtr turn);
  Task<void> FetchFor(TurnPtr turn);
  // Its blocks, from the last one on.
  Task<std::deque<catalog::KeyHash>> FindChain(const Turn& turn);
  std::uint64_t BytesOf(catalog::TreeId tree, catalog::KeyHash key_hash) const;
  // Those records of a block that lie below memory; false: no more is fetched for the turn.
  Task<bool> FetchBlock(Turn& turn, catalog::KeyHash key_hash);
  Task<bool> FetchRecord(Turn& turn, catalog::RecordId record, std::uint64_t bytes);
  bool MayHold(catalog::TreeId tree, std::uint16_t group, std::uint64_t body_bytes) const;
  // It is late.
  Task<void> Lapse(TurnPtr turn);
  // When it came though no prompt told so: its last block was used meanwhile, by who found all in the index.
  std::optional<std::uint64_t> CameUntold(const Turn& turn, catalog::BlockId last) const;
  enum class Why : std::uint8_t { kCame, kGivenUp, kLate };
  Task<void> LetGo(TurnPtr turn, Why why);
  void LetGo(catalog::RecordHandle handle, Why why);

  const StoreContext context_;
  LowerTier& lower_;
  Residents& residents_;
  Fetcher& fetcher_;
  policy::FetchAhead ahead_;
  Due due_;
  ByLast by_last_;
  std::deque<TurnPtr> given_up_;          // what is held for them is to be let go
  Event changed_;                         // the first of due_, or a turn was given up
  std::optional<std::uint64_t> running_;  // LowerTier::outs when it began
  bool stopping_ = false;
};

}  // namespace cistern::residency
