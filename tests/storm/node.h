// SPDX-License-Identifier: Apache-2.0
// A node of the storm: the product's journal, slots and block store on the simulated loop, in the same shared
// memory as its predecessor, with movers that are actors. What the server does for real sessions, calls do
// here.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/random.h"
#include "base/task_group.h"
#include "catalog/journal.h"
#include "flash/flash_tier.h"
#include "io/simulated_loop.h"
#include "memory/arena_backing.h"
#include "memory/movers.h"
#include "memory/slots.h"
#include "sim_words.h"
#include "store/block_store.h"
#include "tier/simulated_tier.h"

namespace cistern::storm {

// The memory that a session fills, and which writes still use it.
struct Staging {
  std::vector<std::byte> bytes;
  std::uint32_t writes = 0;
};

struct Call {
  enum class Kind : std::uint8_t {
    kAttach,
    kMatchRest,
    kHold,
    kAcquire,
    kRelease,
    kWrite,
    kPublish,
    kAbandon,
    kTouch,
    kTouchPlace,
    kDrop,
    kDropNamespace,
    kEndConversation,
    kReportBad,
    kSessionEnded,
    kTakeOut,  // a device, by its path in `spec.name`
    kBringBack,
  };
  Kind kind = Kind::kTouch;
  catalog::Caller caller;
  std::uint32_t slot = 0;
  std::uint64_t incarnation = 0;
  Instant deadline = Instant::Never();
  NamespaceSpec spec;
  std::vector<BlockKey> keys;
  std::vector<catalog::BlockName> names;
  std::vector<store::PartWrite> parts;
  std::vector<PutId> puts;
  std::int64_t duration_us = 0;
  std::int64_t worth_us = kNoWorthLimit;
  std::uint64_t number = 0;  // a lease; a place and generation; how many matched; a conversation
  bool last_of_owner = false;
  store::MatchedPrompt prompt;  // of a match: its keys; in `first_new` how many the client has seen
  std::shared_ptr<Staging> staging;

  // The answer. Lost: the node died first.
  bool done = false, lost = false;
  Status status;
  std::vector<store::PartOutcome> outcomes;
  store::AcquireGrant grant;
  std::uint64_t value = 0, incarnation_now = 0;

  // Called once, when it is answered or lost, before anybody else goes on.
  std::function<void(Call&)> answered;
  Actor* waiter = nullptr;
};
using CallPtr = std::shared_ptr<Call>;

class SimMovers final : public memory::Movers {
 public:
  SimMovers(Scheduler& scheduler, arena::Words& words) : scheduler_(scheduler), words_(words) {}

  void Submit(memory::MoverJob& job) override;
  // What a mover actor does until it is killed or told to end.
  void Main();
  // From the core: what was moved, to be run there.
  std::vector<memory::MoverJob*> TakeMoved() { return std::move(moved_); }
  bool has_moved() const { return !moved_.empty(); }
  // Nothing will ever be moved: tasks that wait can be dropped. Every mover has ended.
  void Abandon();
  void End() { ending_ = true; }
  bool idle() const { return jobs_.empty() && moved_.empty() && moving_ == 0; }

 private:
  Scheduler& scheduler_;
  arena::Words& words_;
  std::deque<memory::MoverJob*> jobs_;
  std::vector<memory::MoverJob*> moved_;
  std::vector<memory::MoverJob*> abandoned_;
  std::uint32_t moving_ = 0;
  bool ending_ = false;
  std::vector<Actor*> waiting_;
  friend class SimNode;
  Actor* core_ = nullptr;
};

// A block that may lie in the lower tier.
struct LowerBlock {
  std::uint32_t ns = 0;
  std::uint16_t group = 0;
  std::uint16_t code = 0;
  std::uint32_t slot = 0;
  BlockKey key;
  enum class State : std::uint8_t { kUnknown, kThere, kGone } state = State::kUnknown;
};

class SimNode {
 public:
  struct Surroundings {
    Scheduler& scheduler;
    arena::Words& words;
    io::SimulatedDisk& disk;
    Logger& log;
    arena::ArenaSpace arena;
    arena::IndexSpace index;
    catalog::StoreOptions options;
    // The lower tier: one of them, or none.
    std::optional<flash::FlashOptions> flash;
    std::optional<tier::SimulatedTierOptions> simulated;
    tier::SimulatedMedia& media;
    std::uint64_t seed;
    std::uint32_t movers;
    // Called on the core, between two steps.
    std::function<void(SimNode&)> recovered;  // before any call is taken
    // No call is under way. False where the lower tier's traffic has to settle first: to be called again.
    std::function<bool(SimNode&)> idle;
    // Of blocks that are not in memory, to be asked for before the two above, and what came of it.
    std::function<std::vector<LowerBlock>(SimNode&)> doubts;
    std::function<void(SimNode&, std::vector<LowerBlock>)> told;
    std::function<void(SimNode&, std::uint64_t wall_s)> ticked;
  };

  explicit SimNode(const Surroundings& around);

  // The core's actor, from start to end.
  void Main();
  // From outside of all actors: the process ends, and with `power_cut` the disk's cache too. Open calls are
  // lost. What was on its way to and from the disk, which may land later.
  io::LateIo Kill(bool power_cut);
  // Asks where blocks are that are not in memory, tells it, and stops; to be killed then.
  void WantSurvey() { want_survey_ = true; }
  bool surveyed() const { return surveyed_; }
  // Nothing goes on any more between memory and the lower tier.
  bool closed() const { return closed_; }
  // Ends in order when it is idle.
  void End() { ending_ = true; }

  bool serving() const { return serving_ && !gone_; }
  // How often its journal was written anew.
  std::uint64_t journal_state() const { return journal_->mark().state; }
  bool gone() const { return gone_; }  // it ended or could not start
  // The core stands between two words of a step, and something is under way.
  bool midway() const { return core_ != nullptr && core_->midway(); }
  std::size_t under_way() const { return open_.size(); }
  void Send(CallPtr call);
  // Memory is to have so many chunks from the core's next turn on.
  void WantHeaders(std::uint32_t headers) { want_headers_ = headers; }
  // Takes no calls until those under way have ended and idle was called.
  void WantIdle() { want_idle_ = true; }

  Executor& executor() { return loop_->executor(); }
  store::BlockStore& store() { return *store_; }
  // When the store's last tick began.
  Instant ticked() const { return ticked_; }
  flash::FlashTier& flash() { return static_cast<flash::FlashTier&>(*store_->tier()); }
  tier::SimulatedTier& simulated() { return static_cast<tier::SimulatedTier&>(*store_->tier()); }
  memory::Slots& slots() { return *slots_; }
  catalog::Journal& journal() { return *journal_; }
  Actor* core() { return core_; }
  const Status& start() const { return start_; }

 private:
  void Serve();
  bool Turn();
  bool Tick();
  Task<void> Tend();
  void TakeCalls();
  void CheckSteps();
  void TearDown();
  // False: killed meanwhile.
  bool RunTask(Task<void> task);
  void Abandon();
  bool has_lower_tier() const { return around_.flash || around_.simulated; }
  Task<Result<std::unique_ptr<tier::Tier>>> OpenSimulated(tier::JournalView journal);
  Task<void> BringBack(Call& call);
  bool Survey();
  Task<void> AskLowerTier(std::vector<LowerBlock>& blocks);
  Task<void> Handle(CallPtr call);
  Task<void> Do(Call& call);
  void Answer(CallPtr call);

  Surroundings around_;
  Scheduler& scheduler_;
  Actor* core_ = nullptr;
  std::vector<Actor*> mover_actors_;
  std::unique_ptr<io::SimulatedLoop> loop_;
  std::unique_ptr<SimMovers> movers_;
  std::unique_ptr<catalog::Journal> journal_;
  std::unique_ptr<memory::Slots> slots_;
  std::unique_ptr<store::BlockStore> store_;
  std::unique_ptr<TaskGroup> tasks_;
  std::unique_ptr<TaskGroup> resizing_;
  std::unique_ptr<memory::ArenaBacking> backing_;
  std::uint32_t want_headers_ = 0;
  std::deque<CallPtr> inbox_;
  std::vector<CallPtr> open_;  // sent and not answered
  Status start_;
  bool serving_ = false, gone_ = false, ending_ = false, want_idle_ = false;
  bool closed_ = false, want_survey_ = false, surveyed_ = false;
  Instant ticked_;
  Random random_;
};

}  // namespace cistern::storm
