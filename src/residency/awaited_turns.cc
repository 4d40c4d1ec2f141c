// SPDX-License-Identifier: Apache-2.0
#include "residency/awaited_turns.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace cistern::residency {

void AwaitedTurns::Tell(catalog::TreeId tree, catalog::KeyHash last, std::uint32_t told_ms) {
  if (!lower_.present() || lower_.closed() || stopping_) return;
  context_.counters.turns_told.Add();
  if (const auto same = by_last_.find(last); same != by_last_.end()) GiveUp(same->second);
  const std::uint64_t now_ms = residents_.NowMs();
  const auto believed = ahead_.WindowOf(told_ms);
  // Without a window it is waited for all the same, to learn whether such times are true by now.
  const auto window = believed.value_or(policy::FetchAhead::Window{told_ms / 2, 2 * std::uint64_t{told_ms}});
  auto turn = std::make_shared<Turn>(Turn{.tree = tree,
                                          .last = last,
                                          .told_ms = told_ms,
                                          .asked_ms = now_ms,
                                          .window = window,
                                          .since_ms = now_ms + window.from_ms,
                                          .next = believed ? Next::kAskSize : Next::kLapse});
  Await(std::move(turn), now_ms + (believed ? policy::FetchAhead::AskMs(window) : window.until_ms));
  context_.steps.Count(2);
  while (due_.size() > kMost) GiveUp(std::prev(due_.end()));
  changed_.Pulse();
  Start();
}

void AwaitedTurns::Start() {
  if (running_ == lower_.outs() || stopping_ || lower_.closed() || (due_.empty() && given_up_.empty()))
    return;
  running_ = lower_.outs();
  lower_.Spawn(OutOfLanes(context_.executor, [this] { return Run(); }));
}

void AwaitedTurns::Await(TurnPtr turn, std::uint64_t at_ms) {
  const catalog::KeyHash last = turn->last;
  by_last_[last] = due_.emplace(at_ms, std::move(turn));
}

void AwaitedTurns::Again(Due::iterator at, std::uint64_t at_ms, Next next) {
  TurnPtr turn = std::move(at->second);
  due_.erase(at);
  turn->next = next;
  Await(std::move(turn), at_ms);
}

AwaitedTurns::TurnPtr AwaitedTurns::Take(Due::iterator at) {
  TurnPtr turn = std::move(at->second);
  by_last_.erase(turn->last);
  due_.erase(at);
  turn->over = true;
  if (turn->fetch != nullptr) turn->fetch->held = false;
  return turn;
}

// Of those that wait to be let go each holds something, so memory bounds them.
void AwaitedTurns::GiveUp(Due::iterator at) {
  TurnPtr turn = Take(at);
  if (!turn->held.empty()) given_up_.push_back(std::move(turn));
}

AwaitedTurns::ByLast::const_iterator AwaitedTurns::FindTurn(catalog::KeyHash last) const {
  const auto found = by_last_.find(last);
  if (found == by_last_.end()) return found;
  const Turn& turn = *found->second->second;
  const bool is_turn = policy::FetchAhead::IsTurn(turn.told_ms, residents_.NowMs() - turn.asked_ms);
  return is_turn ? found : by_last_.end();
}

Task<void> AwaitedTurns::Came(catalog::KeyHash last) {
  const auto found = FindTurn(last);
  if (found == by_last_.end()) co_return;
  TurnPtr turn = Take(found->second);
  ahead_.Note(turn->told_ms, residents_.NowMs() - turn->asked_ms);
  if (!turn->fetched) context_.counters.ahead_too_late.Add();
  changed_.Pulse();
  co_await LetGo(std::move(turn), Why::kCame);
}

bool AwaitedTurns::TrimOne() {
  const std::uint64_t bytes = residents_.held_bytes();
  if (bytes == 0 || policy::FetchAhead::MayHold(bytes, context_.slots.bytes())) return false;
  const std::optional<policy::EntryId> first = residents_.order().FirstHeld();
  if (!first) return false;
  context_.steps.Count();
  residents_.LetGo(*first);
  return true;
}

void AwaitedTurns::Stop() {
  stopping_ = true;
  changed_.Pulse();
}

// Ends when nothing is awaited, and is begun again by what is told next.
Task<void> AwaitedTurns::Run() {
  const std::uint64_t outs = lower_.outs();
  while (!stopping_ && outs == lower_.outs()) {
    if (context_.steps.Spent()) co_await Yield();
    if (!given_up_.empty()) {
      TurnPtr turn = std::move(given_up_.front());
      given_up_.pop_front();
      co_await LetGo(std::move(turn), Why::kGivenUp);
      continue;
    }
    if (due_.empty()) break;
    const std::uint64_t now_ms = residents_.NowMs();
    const auto first = due_.begin();
    if (first->first > now_ms) {
      (void)co_await changed_.Wait(
          context_.clock.Now().PlusUs(static_cast<std::int64_t>((first->first - now_ms) * 1'000)));
      continue;
    }
    residents_.NoteTime();
    TurnPtr turn = first->second;
    context_.steps.Count();
    switch (turn->next) {
      case Next::kAskSize: co_await AskSize(turn); break;
      case Next::kFetch:
        turn->fetched = false;
        Again(first, turn->until_ms(), Next::kLapse);
        co_await FetchFor(turn);
        break;
      case Next::kLapse:
        Take(first);
        co_await Lapse(std::move(turn));
        break;
    }
  }
  if (outs == lower_.outs()) running_.reset();
}

// What is in memory yet counts as well: by the time that it is fetched others may have pushed it out.
Task<void> AwaitedTurns::AskSize(TurnPtr turn) {
  Again(by_last_.at(turn->last), turn->asked_ms + turn->window.from_ms, Next::kFetch);
  std::deque<catalog::KeyHash> chain = co_await FindChain(*turn);
  const std::uint64_t most = policy::FetchAhead::MostHeld(context_.slots.bytes());
  std::uint64_t bytes = 0;
  for (; !chain.empty() && bytes < most && !turn->over; chain.pop_front()) {
    if (context_.steps.Spent()) co_await Yield();
    bytes += BytesOf(turn->tree, chain.front());
  }
  if (turn->over) co_return;
  const std::uint64_t begin_ms = ahead_.BeginMs(turn->window, std::min(bytes, most));
  Again(by_last_.at(turn->last), turn->asked_ms + begin_ms, Next::kFetch);
}

std::uint64_t AwaitedTurns::BytesOf(catalog::TreeId tree, catalog::KeyHash key_hash) const {
  const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(tree);
  if (entry == nullptr) return 0;
  context_.steps.Count();
  const catalog::BlockId block = context_.catalog.FindKeyHash(tree, key_hash);
  if (block == catalog::kNoId) return 0;
  std::uint64_t bytes = 0;
  for (std::uint16_t group = 0; group < entry->groups.size(); ++group) {
    context_.steps.Count();
    if (const auto copy = context_.forest.See(block, group)) bytes += copy->body_bytes;
  }
  return bytes;
}

Task<void> AwaitedTurns::FetchFor(TurnPtr turn) {
  std::deque<catalog::KeyHash> chain = co_await FindChain(*turn);
  bool more = true;
  for (; more && !chain.empty(); chain.pop_back()) {
    if (context_.steps.Spent()) co_await Yield();
    more = !stopping_ && !turn->over && residents_.NowMs() < turn->until_ms();
    if (more) more = co_await FetchBlock(*turn, chain.back());
  }
  turn->fetched = true;
  turn->since_ms = std::max(turn->since_ms, residents_.NowMs());
}

Task<std::deque<catalog::KeyHash>> AwaitedTurns::FindChain(const Turn& turn) {
  std::deque<catalog::KeyHash> chain;
  for (catalog::BlockId at = context_.catalog.FindKeyHash(turn.tree, turn.last);
       at != catalog::kNoId && context_.forest.block(at).has_key();) {
    const catalog::KeyHash key_hash = context_.forest.block(at).key_hash();
    if (context_.steps.Spent()) {
      co_await Yield();
      // The id may be another block's by then.
      at = context_.catalog.FindKeyHash(turn.tree, key_hash);
      if (at == catalog::kNoId) break;
    }
    context_.steps.Count();
    chain.push_back(key_hash);
    if (chain.size() > kMostBlocks) chain.pop_front();
    at = context_.forest.block(at).parent;
  }
  co_return chain;
}

Task<bool> AwaitedTurns::FetchBlock(Turn& turn, catalog::KeyHash key_hash) {
  for (std::uint16_t group = 0;; ++group) {
    const catalog::NamespaceEntry* entry = context_.catalog.EntryOf(turn.tree);
    if (entry == nullptr) co_return false;
    if (group == entry->groups.size()) co_return true;
    const catalog::BlockId block = context_.catalog.FindKeyHash(turn.tree, key_hash);
    // What descends from it is gone as well.
    if (block == catalog::kNoId) co_return false;
    const auto copy = context_.forest.See(block, group);
    context_.steps.Count();
    if (!copy || copy->in_memory) continue;
    if (turn.over || context_.catalog.Expired(copy->expiry) || !MayHold(turn.tree, group, copy->body_bytes))
      co_return false;
    const bool came = co_await FetchRecord(turn, context_.forest.Take(block, group), copy->body_bytes);
    if (!came) co_return false;
  }
}

bool AwaitedTurns::MayHold(catalog::TreeId tree, std::uint16_t group, std::uint64_t body_bytes) const {
  const std::uint64_t bytes = context_.catalog.RecordBytesOf(tree, group, body_bytes);
  return policy::FetchAhead::MayHold(residents_.held_bytes() + bytes, context_.slots.bytes()) &&
         (context_.options.max_blocks == 0 ||
          policy::FetchAhead::MayHold(residents_.order().held() + 1, context_.options.max_blocks));
}

Task<bool> AwaitedTurns::FetchRecord(Turn& turn, catalog::RecordId record, std::uint64_t bytes) {
  const Instant began = context_.clock.Now();
  const catalog::RecordHandle handle = context_.catalog.HandleOf(record);
  turn.fetch = fetcher_.Start(record);
  turn.fetch->held = true;
  co_await turn.fetch->done.Wait();
  const bool came = turn.fetch->status.ok();
  turn.fetch.reset();
  if (came) {
    context_.counters.fetched_ahead.Add();
    ahead_.NoteRead(bytes, static_cast<std::uint64_t>(context_.clock.Now().UsSince(began)));
  }
  const bool here = context_.catalog.Lives(handle) && context_.forest.record(handle.record).in_memory();
  if (turn.over) {
    LetGo(handle, Why::kGivenUp);
  } else if (came && here) {
    turn.held.push_back(handle);
  }
  co_return here;
}

Task<void> AwaitedTurns::Lapse(TurnPtr turn) {
  const catalog::BlockId last = context_.catalog.EntryOf(turn->tree) == nullptr
                                    ? catalog::kNoId
                                    : context_.catalog.FindKeyHash(turn->tree, turn->last);
  const std::optional<std::uint64_t> came_ms = CameUntold(*turn, last);
  // Where this node stood still, what came meanwhile has not been taken yet.
  const bool stood = !came_ms && residents_.NowMs() > turn->until_ms() + kStoodMs;
  // Nothing is learned of a prompt that is gone.
  if (last != catalog::kNoId && !stood) {
    ahead_.Note(turn->told_ms, came_ms);
    if (!came_ms) context_.counters.turns_missed.Add();
  }
  co_await LetGo(std::move(turn), came_ms ? Why::kCame : stood ? Why::kGivenUp : Why::kLate);
}

std::optional<std::uint64_t> AwaitedTurns::CameUntold(const Turn& turn, catalog::BlockId last) const {
  const catalog::RecordId record = last == catalog::kNoId ? catalog::kNoId : residents_.FirstOf(last);
  if (record == catalog::kNoId) return std::nullopt;
  const std::uint64_t now_ms = residents_.NowMs();
  const std::uint64_t used_ms = now_ms - residents_.order().SinceUse(record);
  return used_ms > turn.since_ms ? std::optional(used_ms - turn.asked_ms) : std::nullopt;
}

Task<void> AwaitedTurns::LetGo(TurnPtr turn, Why why) {
  for (const catalog::RecordHandle& handle : turn->held) {
    if (context_.steps.Spent()) co_await Yield();
    LetGo(handle, why);
  }
}

void AwaitedTurns::LetGo(catalog::RecordHandle handle, Why why) {
  context_.steps.Count(2);
  if (!context_.catalog.Lives(handle)) return;
  catalog::Record& r = context_.forest.record(handle.record);
  if (!r.in_memory()) return;
  if (why == Why::kCame) context_.counters.ahead_used.Add();
  if (!residents_.order().Held(handle.record)) return;
  residents_.LetGo(handle.record);
  if (why != Why::kLate) return;
  if (context_.options.lower.promote == Promotion::kWorth) r.flags |= catalog::Record::kTransient;
  if (r.references == 0) residents_.MakeColdest(handle.record);
}

}  // namespace cistern::residency
