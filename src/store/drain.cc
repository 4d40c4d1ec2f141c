// SPDX-License-Identifier: Apache-2.0
#include "store/drain.h"

#include <algorithm>
#include <utility>

namespace cistern::store {
namespace {

// Between two looks at what is waited for.
constexpr std::int64_t kRestUs = 50'000;
// A lower tier that has taken nothing in so many looks takes no more. Half a minute has room for the
// transfers of a batch one after the other, each as long as flash lets a device be at one; of time in which
// the node stood or hardly ran it has but few looks.
constexpr int kStalledLooks = 600;
// Rounds after which memory alone has no less than before: the lower tier gives up as much as it takes.
constexpr int kInVain = 2;
// Of memory, what is on offer at a time where the lower tier goes too.
constexpr std::uint64_t kOfferedShare = 4;

}  // namespace

std::string_view ToString(Drain::Stage stage) {
  switch (stage) {
    case Drain::Stage::kOff: return "off";
    case Drain::Stage::kWrites: return "writing";
    case Drain::Stage::kGives: return "giving";
    case Drain::Stage::kWaits: return "waiting";
    case Drain::Stage::kDrained: return "drained";
  }
  return "unknown";
}

Task<bool> Drain::Run(DrainOrder order) {
  const bool out_of_time = stage_ == Stage::kDrained && context_.clock.Now() >= order.deadline;
  if ((complete() || out_of_time) && order.memory_goes <= memory_goes_ &&
      order.lower_tier_goes <= lower_tier_goes_)
    co_return true;
  Stop();
  const std::uint64_t number = number_;
  memory_goes_ = order.memory_goes;
  lower_tier_goes_ = order.lower_tier_goes;
  context_.log.Log(LogLevel::kInfo, "drain: no puts from now on",
                   writes() ? ", what memory alone has is written to flash" : "");
  written_durably_.reset();
  stage_ = Stage::kWrites;
  lower_records_.SetMemoryGoes(writes());
  switches_.Close(Switch::kWrites, true);
  handed_over_.reset();
  std::optional<Task<HandedOver>> giving;
  if (hand_over_ != nullptr) hand_over_->SetDraining(true);
  if (hand_over_ != nullptr && order.memory_goes) {
    // Who takes a block reads it here, where an order before this one may have ended that.
    if (switches_.closed(Switch::kReads)) {
      switches_.Close(Switch::kReads, false);
      co_await namespaces_.ShowAll();
      if (number != number_) co_return false;
    }
    // Beside the writing: each may take all the time that there is.
    GiveOrder give{.deadline = order.deadline, .lower_tier = order.lower_tier_goes};
    if (give.lower_tier) give.offered_bytes = context_.slots.bytes() / kOfferedShare;
    giving.emplace(hand_over_->Give(give));
  }
  if (writes()) {
    co_await WriteAll(number, order.deadline);
  } else {
    co_await CountAlone(number, order.deadline);
  }
  if (giving) {
    if (number == number_) stage_ = Stage::kGives;
    const HandedOver handed = co_await *giving;
    if (number == number_) {
      handed_over_ = handed;
      LogHandedOver();
    }
  }
  if (number != number_) co_return false;
  stage_ = Stage::kWaits;
  switches_.Close(Switch::kReads, true);
  co_await namespaces_.ShowAll();
  while (GoesOn(number, order.deadline) && anyone_waits()) co_await Rest(order.deadline);
  if (number != number_) co_return false;
  // Copies that flash gave up beside that were written once more.
  if (!durable() && GoesOn(number, order.deadline)) co_await WriteAll(number, order.deadline);
  if (number != number_) co_return false;
  stage_ = Stage::kDrained;
  const std::string_view why =
      complete()                  ? "it is safe to stop the node; "
      : !durable() && lost() == 0 ? "its time has passed before flash made durable what it took; "
      : lower_.present()          ? "its time has passed, or flash takes no more, or none of their size; "
                                  : "it has no flash, or its time has passed; ";
  context_.log.Log(complete() ? LogLevel::kInfo : LogLevel::kWarning, "drain: ", why,
                   order.memory_goes ? lost() : alone(), " blocks are in memory alone",
                   order.memory_goes ? "" : ", whose files stay", ", ", context_.leases.size(),
                   " leases and ", context_.pending.size(), " puts were waited for in vain");
  co_return true;
}

void Drain::LogHandedOver() {
  if (handed_over_->members == 0) {
    context_.log.Log(
        LogLevel::kWarning,
        "drain: no other node of the cell takes blocks, the node goes on alone: nothing was handed over");
    return;
  }
  context_.log.Log(LogLevel::kInfo, "drain: other nodes took ", handed_over_->blocks, " blocks, ",
                   handed_over_->bytes, " bytes; ", handed_over_->left,
                   " are in memory alone and nobody took them");
}

void Drain::Stop() {
  ++number_;
  if (hand_over_ != nullptr) hand_over_->Stop();
}

Task<void> Drain::End() {
  Stop();
  if (hand_over_ != nullptr) hand_over_->SetDraining(false);
  if (stage_ == Stage::kOff) co_return;
  stage_ = Stage::kOff;
  handed_over_.reset();
  lower_records_.SetMemoryGoes(false);
  switches_.Close(Switch::kWrites, false);
  switches_.Close(Switch::kReads, false);
  co_await namespaces_.ShowAll();
  context_.log.Log(LogLevel::kInfo, "drain: ended, the node is in service again");
}

std::uint64_t Drain::alone() const {
  const std::uint64_t came = counted_ + lower_records_.gave_up() - gave_up_then_;
  return came - std::min(came, context_.counters.written_down.value() - written_then_);
}

// What a device had that left service meanwhile, as one does that cannot make it durable, is memory's alone
// again.
Task<void> Drain::WriteAll(std::uint64_t number, Instant deadline) {
  std::uint64_t outs = 0;
  do {
    outs = lower_.outs();
    while (lower_records_.losing() && GoesOn(number, deadline)) co_await Rest(deadline);
    co_await CountAlone(number, deadline);
    co_await WriteDown(number, deadline);
    const std::uint64_t written = context_.counters.written_down.value();
    const bool made = co_await MakeDurable(number, deadline);
    if (number == number_) written_durably_ = made ? std::optional(written) : std::nullopt;
  } while (GoesOn(number, deadline) && lower_.outs() != outs);
}

Task<bool> Drain::MakeDurable(std::uint64_t number, Instant deadline) {
  if (lower_.closed()) co_return false;
  const auto made = std::make_shared<std::optional<Status>>();
  lower_.Spawn(AskForDurable(made));
  while (!made->has_value() && GoesOn(number, deadline)) co_await Rest(deadline);
  co_return made->has_value() && (*made)->ok();
}

Task<void> Drain::AskForDurable(std::shared_ptr<std::optional<Status>> made) {
  *made = co_await lower_->MakeDurable();
}

// Puts that had begun become visible meanwhile, and records that the lower tier gives up are memory's alone
// again: so it looks until there are none, or no fewer.
Task<void> Drain::WriteDown(std::uint64_t number, Instant deadline) {
  std::uint64_t least = ~std::uint64_t{0};
  int in_vain = 0;
  while (GoesOn(number, deadline)) {
    if (alone() == 0 && counted_all_) co_return;
    if (alone() == 0) {
      co_await Rest(deadline);
    } else {
      if (counted_ >= least && ++in_vain == kInVain) co_return;
      least = std::min(least, counted_);
      co_await LookAtAll(Look::kQueue, number, deadline);
      std::uint64_t written = context_.counters.written_down.value();
      for (int looks = 0; GoesOn(number, deadline) && !write_back_.idle();) {
        co_await Rest(deadline);
        const std::uint64_t before = std::exchange(written, context_.counters.written_down.value());
        looks = written == before ? looks + 1 : 0;
        if (looks == kStalledLooks) co_return;
      }
    }
    co_await CountAlone(number, deadline);
  }
}

Task<std::uint64_t> Drain::LookAtAll(Look look, std::uint64_t number, Instant deadline) {
  std::uint64_t alone = 0;
  for (catalog::BlockId id = 0; id < context_.forest.block_end() && number == number_; ++id) {
    if (context_.steps.Spent()) co_await Yield();
    while (look == Look::kQueue && GoesOn(number, deadline) && queue_.nearly_full()) co_await Rest(deadline);
    context_.steps.Count();
    const catalog::Block& block = context_.forest.block(id);
    if (!block.has_key() || block.folded() || block.is(catalog::Block::kCut)) continue;
    for (catalog::RecordId record = block.first_record; record != catalog::kNoId;
         record = context_.forest.record(record).next) {
      context_.steps.Count();
      const catalog::Record& r = context_.forest.record(record);
      if (!r.in_memory() || r.in_lower_tier()) continue;
      ++alone;
      if (look == Look::kQueue) write_back_.Want(record);
    }
  }
  co_return alone;
}

// What a put publishes during the count may lie behind it, and what is written may be in it or not.
Task<void> Drain::CountAlone(std::uint64_t number, Instant deadline) {
  const std::uint64_t written = context_.counters.written_down.value(), gave_up = lower_records_.gave_up();
  const bool all = context_.pending.size() == 0;
  const std::uint64_t alone = co_await LookAtAll(Look::kCount, number, deadline);
  if (number != number_) co_return;  // it has not looked at all, and the count is another order's
  written_then_ = written;
  gave_up_then_ = gave_up;
  counted_ = alone;
  counted_all_ = all && context_.counters.written_down.value() == written;
}

Task<void> Drain::Rest(Instant deadline) {
  co_await SleepUntil(std::min(deadline, context_.clock.Now().PlusUs(kRestUs)));
}

}  // namespace cistern::store
