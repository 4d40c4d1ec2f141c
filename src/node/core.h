// SPDX-License-Identifier: Apache-2.0
// What runs on a node's core thread, and how it gets there and ends. Of this folder alone.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "admin/heartbeat.h"
#include "admin/http_server.h"
#include "admin/trace_sender.h"
#include "arena/words.h"
#include "base/clock.h"
#include "base/event.h"
#include "base/format.h"
#include "base/log.h"
#include "base/metric_registry.h"
#include "base/slow_calls.h"
#include "base/start_threads.h"
#include "base/task_group.h"
#include "catalog/journal.h"
#include "flash/flash_tier.h"
#include "memory/arena_file.h"
#include "memory/movers.h"
#include "memory/slots.h"
#include "mesh/registered_arena.h"
#include "node/cell.h"
#include "node/flash_devices.h"
#include "node/ground.h"
#include "node/journal_place.h"
#include "node/lingering.h"
#include "node/node.h"
#include "node/node_metrics.h"
#include "node/own_files.h"
#include "node/stage_watch.h"
#include "server/lanes.h"
#include "server/server.h"
#include "store/block_store.h"
#include "store/drain.h"
#include "wire/protocol.h"

namespace cistern::node {

// Of the options; without max_lower_blocks.
catalog::StoreOptions StoreOptionsOf(const NodeOptions& options);

// Made by Start's thread as far as it blocks, then run by the core's thread, which makes and ends what
// belongs to it. Members are in the order in which they stand on each other.
class Node::Core {
 public:
  static Result<std::unique_ptr<Core>> Make(NodeOptions options);
  ~Core() { Stop(0); }

  void Stop(std::int64_t drain_us) {
    if (!thread_.joinable()) return;
    drain_us_ = drain_us;
    ground_.loop->Stop();
    thread_.join();
  }

  Executor& executor() { return ground_.loop->executor(); }  // for its tasks

  std::string http() const { return facts_.http; }
  Result<Reloaded> Reload(Result<NodeOptions> read);

  Result<Fd> ClientEnd();
  std::optional<std::uint64_t> AcquireAtOnce(std::uint64_t session, std::uint32_t slot,
                                             std::uint64_t incarnation, std::span<const BlockRef> blocks,
                                             std::int64_t lease_us, std::span<wire::ViewItem> views);
  bool ReleaseAtOnce(std::uint64_t session, std::uint64_t lease);

 private:
  // What lives on the core's thread.
  struct Parts {
    std::unique_ptr<server::Lanes> lanes;
    std::unique_ptr<memory::Slots> slots;
    std::unique_ptr<memory::Movers> movers;
    std::unique_ptr<memory::ThreadMovers> blocked;  // what takes long and moves no bytes of clients
    std::unique_ptr<memory::ThreadMovers> devices;  // what a device may keep waiting; null: there is no flash
    std::unique_ptr<catalog::Journal> journal;
    std::unique_ptr<store::BlockStore> store;
    std::unique_ptr<FlashDevices> flash_devices;
    std::unique_ptr<Cell> cell;                         // null: the node is in none
    std::unique_ptr<mesh::RegisteredArena> registered;  // null: no device reads its memory
    std::unique_ptr<server::Server> server;
    std::unique_ptr<OwnFiles> own_files;
    std::unique_ptr<TaskGroup> tasks;
  };

  explicit Core(NodeOptions options) : options_(std::move(options)), started_at_(clock_.Now()) {}

  Status Open();
  Status AwaitStart();
  void Run();
  Task<Status> SetUp(Executor& executor);
  void MakeMovers(const memory::ThreadMoversOptions& movers);
  Task<Status> RecoverStore();
  Task<Result<std::unique_ptr<tier::Tier>>> OpenTier(tier::JournalView journal);
  Task<Status> JoinCell();
  Status OpenDoor();
  Status OpenHttp();
  void NoteSlowCalls();
  void FillRegistry();
  // Of the HTTP thread.
  bool AskForMetrics(std::function<void(MetricSnapshot)> done);
  Result<std::string> Ready() const;
  Task<void> ReadFor(Executor& executor, std::function<void(MetricSnapshot)> done);
  Task<void> Tick(Executor& executor);
  void NoteLingering(Instant now);
  void NoteLoss();
  std::unique_ptr<OwnFiles> WatchFiles();
  Task<void> SettleJournal(Executor& executor);
  void EndItself(const Status& why);
  Task<void> TearDown(Executor& executor);
  Task<void> TellWhatIsAwaited(Event& closed);
  // What memory has of what it is to have. From any thread, while it serves.
  std::string MemoryText() const;
  std::uint64_t PreparedBytes() const;
  std::string FlashText() const;
  Task<Result<server::ReportPage>> Report(std::uint64_t what, std::uint64_t from, std::size_t most_bytes);
  std::function<std::uint8_t(std::int32_t)> NodeOfCall();
  // As ServerParts::drain; the work of it.
  Task<Status> Drain(server::DrainRequest request);
  Task<void> DrainFor(Executor& executor, store::DrainOrder order, bool then_stop);
  // Sets memory on its way to that size.
  Task<Result<std::uint64_t>> Resize(std::uint64_t memory_bytes);
  // The headers that it is, if this arena and this host can have it; and on its way to these.
  Task<Result<std::uint32_t>> CheckMemory(std::uint64_t memory_bytes);
  void SetMemory(std::uint32_t headers);
  Task<void> ReloadFor(Executor& executor, NodeOptions read, std::promise<Result<Reloaded>>& done);
  Reloaded Apply(const NodeOptions& read);

  NodeOptions options_;
  JournalPlace journal_;
  SystemClock clock_;
  BootClock boot_;
  Instant started_at_;
  std::unique_ptr<Logger> log_;
  std::optional<StageWatch> watch_;  // until it serves
  std::optional<SlowCalls> slow_calls_;
  std::unique_ptr<admin::TraceSender> traces_;  // null: nobody takes them
  arena::RealWords words_;
  Ground ground_;
  std::unique_ptr<memory::FaultIn> fault_in_;
  std::optional<Parts> parts_;
  flash::FlashTier* flash_ = nullptr;  // the store's lower tier, from its opening on; null: memory is all
  NodeFacts facts_;
  MetricRegistry registry_;
  admin::Heartbeat heartbeat_;
  Histogram tick_late_ns_;
  enum class Stage : std::uint8_t { kStarts, kServes, kEnds };
  std::atomic<Stage> stage_{Stage::kStarts};
  std::atomic<bool> drains_{false};
  std::atomic<std::uint32_t> wanted_headers_{0};
  std::unique_ptr<admin::HttpServer> http_;
  Lingering lingering_{started_at_};
  bool lost_ = false;  // of its arena
  bool ends_ = false;  // by itself: its files may be gone from now on
  std::int64_t drain_us_ = 0;
  Event stop_ticking_;

  std::mutex mutex_;
  std::condition_variable started_;
  std::optional<Status> start_status_;
  std::thread thread_;
};

}  // namespace cistern::node
