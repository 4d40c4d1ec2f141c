// SPDX-License-Identifier: Apache-2.0
// A server and a store over real flash (a preallocated file, read and written without the page cache), on a
// thread of this process, whose memory holds only the blocks that it is told to; and what holds up a fetch
// until a test lets it go on.
#pragma once

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "../real_node.h"
#include "base/event.h"
#include "base/log.h"
#include "base/task_group.h"
#include "base/test_directory.h"
#include "catalog/journal.h"
#include "flash/flash_tier.h"
#include "io/loop.h"
#include "memory/arena_file.h"
#include "memory/movers.h"
#include "memory/slots.h"
#include "server/lanes.h"
#include "server/server.h"
#include "store/block_store.h"
#include "store/remote_blocks.h"

namespace cistern {

// Moves on the core. Jobs that are done stay unreported while they are held, as if a mover were slow; a fetch
// ends with one, which checks what came.
class HeldMovers final : public memory::Movers {
 public:
  HeldMovers(arena::Words& words, Executor& executor) : words_(words), executor_(executor) {}
  void Submit(memory::MoverJob& job) override {
    job.Move(words_);
    if (!hold) return executor_.Post(job);
    held_.push_back(&job);
    ++held_count;
  }
  void LetGo() {
    hold = false;
    for (memory::MoverJob* job : held_) executor_.Post(*job);
    held_.clear();
  }
  std::atomic<bool> hold{false};
  std::atomic<int> held_count{0};  // ever

 private:
  arena::Words& words_;
  Executor& executor_;
  std::vector<memory::MoverJob*> held_;
};

// Members of a cell that have nothing, and of which it is known as late as it may be.
class SlowMembers final : public store::RemoteBlocks {
 public:
  explicit SlowMembers(Executor& executor) : executor_(executor) {}
  Executor& executor() const { return executor_; }
  bool MayHaveMore(std::uint32_t, std::span<const BlockKey>, std::size_t) override { return false; }
  Task<std::vector<MatchRun>> Match(std::uint32_t, std::span<const BlockKey>, std::size_t, Instant) override {
    co_return std::vector<MatchRun>();
  }
  bool Found(std::uint32_t, std::span<const catalog::BlockName>) const override { return false; }
  Task<std::vector<store::RemoteMiss>> Bring(std::uint32_t, std::span<const catalog::BlockName>,
                                             Instant worth) override {
    co_await SleepUntil(worth);
    co_return std::vector<store::RemoteMiss>();
  }

 private:
  Executor& executor_;
};

class LowerTierNode {
 public:
  LowerTierNode(io::LoopKind kind, std::uint64_t resident, std::uint64_t memory_bytes = 64u << 20,
                Promotion promote = Promotion::kAll, bool slow_members = false) {
    std::filesystem::create_directory(directory_.path() + "/device");
    memory::ArenaOptions arena;
    arena.memory_dir = directory_.path() + "/memory";
    arena.memory_bytes = memory_bytes;
    file_.emplace(std::move(*memory::ArenaFile::Open(arena, clock_)));
    loop_ = std::move(*io::MakeLoop(clock_, {.kind = kind}));
    CISTERN_ASSERT(loop_->HoldLock(file_->lock_fd()).ok());
    std::atomic<bool> serves = false;
    thread_ = std::thread([&, resident, promote, slow_members] {
      if (slow_members) members_.emplace(loop_->executor());
      Status status = loop_->BlockOn(SetUp(loop_->executor(), resident, promote));
      EXPECT_TRUE(status.ok()) << status.ToString();
      file_->SetAlive(true);
      serves = true;
      loop_->Run();
      loop_->BlockOn(TearDown(loop_->executor()));
      file_->SetAlive(false);
      parts_.reset();
    });
    Until([&] { return serves.load(); });
  }
  ~LowerTierNode() {
    LetGo();
    loop_->Stop();
    thread_.join();
    loop_.reset();
    file_.reset();
  }

  std::string socket() const { return directory_.path() + "/socket"; }
  Store Connect() const {
    ConnectOptions options;
    options.socket = socket();
    options.deadline_us = 60'000'000;
    Result<Store> store = Store::Connect(options);
    CISTERN_ASSERT(store.has_value());
    return std::move(*store);
  }
  const catalog::StoreCounters& counters() const { return parts_->store->counters(); }
  // From now on a lease ends by its release alone.
  void KeepLeases() { keeps_leases_ = true; }
  // From now on no fetch ends.
  void Hold() { parts_->movers->hold = true; }
  void LetGo() {
    loop_->PostRemote([this] { parts_->movers->LetGo(); });
  }
  // Jobs that were held so far.
  int held() const { return parts_->movers->held_count; }

 private:
  struct Parts {
    std::unique_ptr<server::Lanes> lanes;
    std::unique_ptr<memory::Slots> slots;
    std::unique_ptr<HeldMovers> movers;
    std::unique_ptr<catalog::Journal> journal;
    std::unique_ptr<store::BlockStore> store;
    std::unique_ptr<server::Server> server;
    std::unique_ptr<TaskGroup> tasks;
  };

  Task<std::string> StatusJson(Executor&) {
    co_return Text("{\"leases\":", parts_->store->occupancy().leases,
                   ",\"awaited_turns\":", parts_->store->occupancy().awaited_turns,
                   ",\"in_flight\":", parts_->server->counters().in_flight, "}");
  }

  Task<Status> SetUp(Executor& executor, std::uint64_t resident, Promotion promote) {
    Parts& parts = parts_.emplace();
    parts.lanes = std::make_unique<server::Lanes>(executor);
    parts.tasks = std::make_unique<TaskGroup>(executor);
    parts.slots = std::make_unique<memory::Slots>(words_, file_->arena());
    parts.movers = std::make_unique<HeldMovers>(words_, executor);
    parts.journal = std::make_unique<catalog::Journal>(*loop_, file_->directory(), 1);
    flash::FlashOptions flash;
    flash.devices.push_back({directory_.path() + "/device", 512u << 20});
    flash.region_bytes = 16u << 20;
    catalog::StoreOptions options;
    options.max_blocks = resident;
    options.max_lower_blocks = 4096;
    options.read_ahead_bytes = 0;
    options.lower.promote = promote;
    store::BlockStore::Parts borrowed{executor,       clock_,        words_,         *parts.slots,
                                      file_->index(), *parts.movers, *parts.journal, *log_};
    borrowed.open_tier = [this, flash](tier::JournalView journal) {
      return flash::OpenFlash({*loop_, *log_, [this] { return ++random_; }}, flash, std::move(journal));
    };
    parts.store = std::make_unique<store::BlockStore>(borrowed, options);
    Status recovered = co_await parts.store->Recover();
    if (!recovered.ok()) co_return recovered;
    server::ServerOptions server;
    server.socket = socket();
    server.staging_budget_bytes = 16u << 20;
    Result<std::unique_ptr<server::Server>> opened =
        server::Server::Open({*loop_, *parts.lanes, *parts.store, *parts.movers, *log_, file_->arena_fd(),
                              file_->index_fd(), file_->boot_count(),
                              [this](std::span<std::byte> bytes) {
                                for (std::byte& byte : bytes) byte = static_cast<std::byte>(++random_);
                              },
                              [this] { return StatusJson(loop_->executor()); },
                              /*device=*/nullptr, /*report=*/nullptr, /*drop=*/nullptr, /*resize=*/nullptr,
                              members_ ? &*members_ : nullptr},
                             server);
    if (!opened) co_return std::move(opened.error());
    parts.server = std::move(*opened);
    parts.tasks->Spawn(Tick(executor));
    co_return Status();
  }
  Task<void> Tick(Executor& executor) {
    for (;;) {
      (void)co_await stop_ticking_.Wait(executor.Now().PlusUs(10'000));
      if (stop_ticking_.is_set()) co_return;
      while (!keeps_leases_ && parts_->store->Tick()) co_await Yield();
    }
  }
  Task<void> TearDown(Executor& executor) {
    stop_ticking_.Set();
    co_await parts_->server->Drain(executor.Now());
    co_await parts_->tasks->Close();
    co_await parts_->store->Close();
  }

  const TestDirectory directory_{TestDirectory::On::kDisk};  // on tmpfs flash would be memory
  SystemClock clock_;
  arena::RealWords words_;
  std::unique_ptr<Logger> log_ = Logger::ToStderr(LogLevel::kError);
  std::optional<memory::ArenaFile> file_;
  std::unique_ptr<io::Loop> loop_;
  std::optional<SlowMembers> members_;
  std::optional<Parts> parts_;
  Event stop_ticking_;
  std::uint64_t random_ = 0;
  std::atomic<bool> keeps_leases_{false};
  std::thread thread_;
};

}  // namespace cistern
