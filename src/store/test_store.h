// SPDX-License-Identifier: Apache-2.0
// A store over an arena in private memory, a simulated loop, clock and disk, and movers that move at once.
// What outlives a process (arena, disk, time) stays over Restart() and Kill(). For tests of this folder and
// of those above it.
#pragma once

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/reader.h"
#include "base/log.h"
#include "base/random.h"
#include "base/slow_calls.h"
#include "catalog/journal.h"
#include "io/simulated_disk.h"
#include "io/simulated_loop.h"
#include "memory/movers.h"
#include "memory/slots.h"
#include "store/block_store.h"

namespace cistern::store {

// Moves at once, on the core; or, when paused, one job when it is told to.
class InlineMovers final : public memory::Movers {
 public:
  InlineMovers(arena::Words& words, Executor& executor) : words_(words), executor_(executor) {}
  void Submit(memory::MoverJob& job) override {
    ++jobs;
    waiting.push_back(&job);
    while (!paused && !waiting.empty()) MoveOne(0);
  }
  void MoveOne(std::size_t which) {
    memory::MoverJob* job = waiting[which];
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(which));
    job->Move(words_);
    executor_.Post(*job);
  }
  // Before a crash: nobody moves what waits. What moved has to be run first.
  void Abandon() {
    for (memory::MoverJob* job : waiting) static_cast<memory::AwaitedJob*>(job)->Abandon();
    waiting.clear();
  }
  std::uint64_t jobs = 0;
  bool paused = false;
  std::vector<memory::MoverJob*> waiting;

 private:
  arena::Words& words_;
  Executor& executor_;
};

class TestStore;

// Opens the lower tier of a test's store; its media outlive the store, as the loop's disk does.
using TestTier =
    std::function<Task<Result<std::unique_ptr<tier::Tier>>>(TestStore& store, tier::JournalView journal)>;

struct TestStoreOptions {
  std::uint32_t headers = 2;
  std::uint32_t nodes = 1;      // memory nodes that the arena is divided among
  std::uint32_t far_nodes = 0;  // of these, the last ones
  std::uint32_t alignment = 4096;
  catalog::StoreOptions store;
  TestTier tier;                // none: memory is all there is
  const Clock* boot = nullptr;  // null: the store's clock stands for it
};

class TestStore {
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  static std::unique_ptr<std::byte, Free> Zeroed(std::uint64_t bytes) {
    void* memory = std::aligned_alloc(arena::kSlotsBoundary, arena::RoundUp(bytes, arena::kSlotsBoundary));
    CISTERN_ASSERT(memory != nullptr);
    return std::unique_ptr<std::byte, Free>(static_cast<std::byte*>(memory));
  }

 public:
  explicit TestStore(const TestStoreOptions& with = {})
      : options(with),
        disk(1),
        geometry{with.alignment, with.headers},
        arena_memory_(Zeroed(geometry.file_bytes())),
        index_memory_(Zeroed(geometry.index_bytes())),
        arena(arena_memory_.get(), geometry),
        index(index_memory_.get(), geometry.bucket_count()),
        log(Logger::ToSink(LogLevel::kOff, [](LogLevel, std::string_view) {})) {
    std::memset(arena_memory_.get(), 0, geometry.slots_offset());
    std::memset(index_memory_.get(), 0, geometry.index_bytes());
    Start();
  }
  ~TestStore() { Stop(); }

  void Start() {
    loop = std::move(*io::SimulatedLoop::Make(clock, disk, ++seed_));
    movers.emplace(words, loop->executor());
    slots.emplace(words, arena,
                  memory::NodePlan(std::vector<std::uint32_t>(options.nodes, 1),
                                   options.nodes - options.far_nodes, options.headers));
    journal.emplace(*loop, "node", 1);
    residency::OpenTierCall open_tier;
    if (options.tier) {
      open_tier = [this](tier::JournalView view) { return options.tier(*this, std::move(view)); };
    }
    store.emplace(BlockStore::Parts{loop->executor(), clock, words, *slots, index, *movers, *journal, *log,
                                    open_tier, &slow_calls, options.boot},
                  options.store);
    recovered = Run(store->Recover());
  }
  // In order: what is under way to and from the lower tier ends first.
  void Stop() {
    if (store && options.tier && !crashed_) Run(store->Close());
    crashed_ = false;
    store.reset();
    journal.reset();
    slots.reset();
    movers.reset();
    loop.reset();
  }
  void Restart() {
    Stop();
    Start();
  }
  // kill -9 with power loss for the disk; memory stays.
  void Kill() {
    loop->Crash();
    NoteCrash();
    Restart();
  }
  // The loop has crashed: nothing of what was under way is waited for.
  void NoteCrash() {
    crashed_ = true;
    store->Abandon();
  }
  // Memory is as new at the next start.
  void ForgetMemory() {
    std::memset(arena_memory_.get(), 0, geometry.file_bytes());
    std::memset(index_memory_.get(), 0, geometry.index_bytes());
  }
  // A power cut: memory is gone, and of what was written what no flush made durable may be.
  void LosePower() {
    loop->Crash();
    NoteCrash();
    Stop();
    ForgetMemory();
    Start();
  }
  // Ticks and lets time go by until nothing more is written or read: each of these takes a time, and nothing
  // else does. That a tick wants another one says less: it does in a memory that it cannot look at in a step.
  // Ends after a second, too: what fails is tried again for ever.
  void Settle() {
    for (int quiet = 0, rounds = 0; quiet < 3 && rounds < 1'000; ++rounds) {
      Tick();
      const Instant before = clock.Now();
      loop->RunUntilIdle();
      quiet = clock.Now() == before ? quiet + 1 : 0;
      clock.AdvanceUs(1000);
    }
  }

  template <class T>
  T Run(Task<T> task) {
    return loop->BlockOn(std::move(task));
  }
  // Ticks until there is nothing more to do now, each in a step of its own.
  void Tick() {
    while (Run(TickOnce(loop->executor()))) continue;
  }
  void Advance(std::int64_t us) {
    clock.AdvanceUs(us);
    Tick();
  }

  std::uint64_t Generation(arena::Place place) { return words.Load(arena.generation(place)); }
  // As a client would read it: the first part, whole.
  std::optional<std::vector<std::byte>> Read(std::uint32_t slot, const BlockKey& key,
                                             std::uint16_t group = 0) {
    arena::Reader<arena::RealWords> reader(words, arena, index);
    const arena::ReadCall call = reader.Begin(slot, clock.Wall().seconds);
    const auto found = reader.Find(call, group, key);
    if (!found) return std::nullopt;
    std::vector<std::byte> body(found->body_bytes);
    auto record = std::make_unique<arena::OpenRecord>();
    const std::span<std::byte> pieces[] = {body};
    const arena::RangeCopy range{{0, 0, body.size()}, pieces};
    const auto outcome = reader.Read(call, {key, group}, &*found, std::span(&range, 1), *record);
    if (outcome != decltype(outcome)::kHit) return std::nullopt;
    return body;
  }

  Task<bool> TickOnce(Executor&) {
    co_await Yield();
    co_return store->Tick();
  }

  const TestStoreOptions options;
  SimulatedClock clock;
  io::SimulatedDisk disk;
  arena::RealWords words;
  arena::Geometry geometry;
  Random random{77};

 private:
  std::unique_ptr<std::byte, Free> arena_memory_, index_memory_;
  std::uint64_t seed_ = 0;
  bool crashed_ = false;

 public:
  arena::ArenaSpace arena;
  arena::IndexSpace index;
  std::unique_ptr<Logger> log;
  SlowCalls slow_calls{clock, *log};
  std::unique_ptr<io::SimulatedLoop> loop;
  std::optional<InlineMovers> movers;
  std::optional<memory::Slots> slots;
  std::optional<catalog::Journal> journal;
  std::optional<BlockStore> store;
  Status recovered;  // what the last start said
};

}  // namespace cistern::store
