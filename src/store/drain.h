// SPDX-License-Identifier: Apache-2.0
// The way of a node out of service. No put comes in any more; what memory alone has is written to the lower
// tier, and in a cell handed over to other nodes; then nothing is found any more, and what clients have
// still, leases and puts that wait, ends by itself. After that the node may be stopped, and where memory goes
// with its host the lower tier, or another node, has all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/task.h"
#include "residency/context.h"
#include "residency/lower_records.h"
#include "residency/lower_tier.h"
#include "residency/write_back.h"
#include "residency/write_queue.h"
#include "store/hand_over.h"
#include "store/namespaces.h"
#include "store/switches.h"

namespace cistern::store {

struct DrainOrder {
  // False: memory's files outlive the node, so that nothing needs to be written.
  bool memory_goes = true;
  // The node does not come back: other nodes are offered what its lower tier has as well. Memory goes then.
  bool lower_tier_goes = false;
  Instant deadline;  // of all of it
};

class Drain final {
 public:
  enum class Stage : std::uint8_t { kOff, kWrites, kGives, kWaits, kDrained };

  Drain(const residency::StoreContext& context, residency::LowerTier& lower,
        residency::LowerRecords& lower_records, residency::WriteBack& write_back,
        residency::WriteQueue& queue, Namespaces& namespaces, Switches& switches)
      : context_(context),
        lower_(lower),
        lower_records_(lower_records),
        write_back_(write_back),
        queue_(queue),
        namespaces_(namespaces),
        switches_(switches) {}
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  Executor& executor() { return context_.executor; }

  // Who takes what memory has, if it goes; null: nobody does. No Run is under way.
  void SetHandOver(HandOver* hand_over) { hand_over_ = hand_over; }

  // Ends with true when the stage is kDrained: nothing is left to be done, or the deadline passed. With false
  // where another order, an end or a stop came before. A second order does what the first one left, if
  // it has time.
  Task<bool> Run(DrainOrder order);
  // In service again.
  Task<void> End();
  // Run ends soon; what is closed stays so.
  void Stop();

  Stage stage() const { return stage_; }
  // Records that memory alone has: as the last look found them, with what the lower tier gave up since, less
  // what was written.
  std::uint64_t alone() const;
  // What others took of what memory has; none: it was not handed over, or is being so.
  const std::optional<HandedOver>& handed_over() const { return handed_over_; }
  // Blocks or records that go with memory: those that neither the lower tier nor another node has.
  std::uint64_t lost() const {
    if (!memory_goes_) return 0;
    if (lower_tier_goes_ && handed_over_) return handed_over_->left;
    return handed_over_ ? std::min(alone(), handed_over_->left) : alone();
  }
  // It has drained, and nothing is left to be done: no put waits, no lease is there, what memory alone has
  // may stay there, or is at other nodes, and what the lower tier took it keeps without power.
  bool complete() const {
    return stage_ == Stage::kDrained && !anyone_waits() && lost() == 0 && durable() && !losing();
  }

 private:
  enum class Look : std::uint8_t { kCount, kQueue };

  // What of it was given, for whoever reads the log.
  void LogHandedOver();
  // Until the lower tier has all of it, durably, or takes no more of it.
  Task<void> WriteAll(std::uint64_t number, Instant deadline);
  Task<void> WriteDown(std::uint64_t number, Instant deadline);
  // What the lower tier took, by the deadline.
  Task<bool> MakeDurable(std::uint64_t number, Instant deadline);
  Task<void> AskForDurable(std::shared_ptr<std::optional<Status>> made);
  // Counts records that memory alone has, or queues each.
  Task<std::uint64_t> LookAtAll(Look look, std::uint64_t number, Instant deadline);
  Task<void> CountAlone(std::uint64_t number, Instant deadline);
  // Until something has changed, maybe.
  Task<void> Rest(Instant deadline);
  bool GoesOn(std::uint64_t number, Instant deadline) const {
    return number == number_ && context_.clock.Now() < deadline;
  }
  // What memory alone has is to be written: it goes, and there is where to.
  bool writes() const { return memory_goes_ && lower_.present(); }
  // Nothing is, or all that was is there without power.
  bool durable() const { return !writes() || written_durably_ == context_.counters.written_down.value(); }
  bool losing() const { return memory_goes_ && lower_records_.losing(); }
  bool anyone_waits() const { return context_.leases.size() > 0 || context_.pending.size() > 0; }

  const residency::StoreContext context_;
  residency::LowerTier& lower_;
  residency::LowerRecords& lower_records_;
  residency::WriteBack& write_back_;
  residency::WriteQueue& queue_;
  Namespaces& namespaces_;
  Switches& switches_;
  std::uint64_t number_ = 0;  // of the last order, end or stop
  Stage stage_ = Stage::kOff;
  bool memory_goes_ = false, lower_tier_goes_ = false;
  std::optional<std::uint64_t> written_durably_;  // records, ever
  HandOver* hand_over_ = nullptr;
  std::optional<HandedOver> handed_over_;
  std::uint64_t counted_ = 0, written_then_ = 0, gave_up_then_ = 0;
  bool counted_all_ = false;  // nothing was published or written beside the count
};

// "off", "writing", "giving", "waiting", "drained".
std::string_view ToString(Drain::Stage stage);

}  // namespace cistern::store
