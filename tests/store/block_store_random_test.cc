// SPDX-License-Identifier: Apache-2.0
// Random operations of several clients at once, with slow movers, failing disks, crashes and damage, against
// a model of what may be read: a block's bytes name their key and put, and a put that was dropped, or that
// came before its namespace's or ancestor's drop, is never read again.
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "base/random.h"
#include "base/random_bytes.h"
#include "base/task_group.h"
#include "flash_store.h"
#include "store/test_store.h"

namespace cistern {
namespace {

constexpr std::uint32_t kBlocks = 60;
// Of flash, a day: none, hardly any, or such that it is spent now and then.
constexpr std::uint64_t kBudgets[] = {0, 0, 1, 100u << 20};

BlockKey Key(std::uint64_t n) {
  BlockKey key;
  key.length = 16;
  const std::uint64_t words[] = {SplitMix(n), SplitMix(~n)};
  std::memcpy(key.bytes.data(), words, 16);
  return key;
}

// Block n's parent; a few roots, bushy chains.
std::optional<std::uint64_t> ParentOf(std::uint64_t n) {
  if (n < 3) return std::nullopt;
  return n % 7 == 0 ? n / 2 : n - 3;
}

store::TestStoreOptions OptionsOf(Random& random, bool with_flash) {
  store::TestStoreOptions options;
  options.headers = 2;
  options.store.max_blocks = random.Chance(0.5) ? 40 : 0;
  options.store.max_pending = 16;
  if (!with_flash) return options;
  // Little memory, so that blocks go down and come up; little flash, so that regions go round.
  options.store.max_blocks = 8 + random.Below(20);
  options.store.max_lower_blocks = 4096;
  options.store.read_ahead_bytes = random.Chance(0.5) ? 0 : 100'000;
  options.store.scrub_bytes_per_s = random.Chance(0.5) ? 0 : 1'000'000;
  options.store.lower.write.policy = static_cast<WritePolicy>(random.Below(3));
  static constexpr Admission kAdmit[] = {Admission::kAll, Admission::kSecondHit, Admission::kWorth,
                                         Admission::kWorth};
  options.store.lower.admit = kAdmit[random.Below(4)];
  flash::FlashOptions flash;
  flash.budget_bytes_a_day = kBudgets[random.Below(4)];
  flash.region_bytes = 256u << 10;
  for (std::uint64_t i = 0; i <= random.Below(2); ++i) {
    flash.devices.push_back({"device" + std::to_string(i), (random.Chance(0.5) ? 2u : 6u) << 20});
  }
  options.tier = OnFlash(flash);
  return options;
}

struct World {
  World(std::uint64_t seed, const NamespaceSpec& with, bool flash)
      : random(seed), spec(with), t(OptionsOf(random, flash)) {
    Begin();
  }
  ~World() { End(); }

  void Begin() {
    ASSERT_TRUE(t.recovered.ok()) << t.recovered.ToString();
    tasks.emplace(t.loop->executor());
    t.movers->paused = true;
    auto attached = t.Run(t.store->Attach(spec));
    ASSERT_TRUE(attached.has_value()) << attached.error().ToString();
    ns = *attached;
  }
  void End() {
    Settle();
    tasks.reset();
    t.movers->paused = false;
    while (!t.movers->waiting.empty()) t.movers->MoveOne(0);
  }
  // Lets everything end.
  void Settle() {
    auto closed = tasks->Close();
    while (!closed.done()) {
      while (!t.movers->waiting.empty()) t.movers->MoveOne(0);
      t.store->Tick();
      t.loop->Turn();
      t.clock.AdvanceUs(1);
    }
    t.Tick();
    for (int quiet = 0; t.options.tier && quiet < 40; ++quiet) {
      while (!t.movers->waiting.empty()) t.movers->MoveOne(0);
      t.Tick();
      t.loop->RunUntilIdle();
    }
  }
  // In one of three memory is gone as well, as after a reboot.
  void Crash() {
    // What movers have done is reported; what they have not is never done.
    t.loop->executor().RunReady(10'000);
    t.loop->Crash();
    t.movers->Abandon();
    t.NoteCrash();
    tasks->Drop();
    tasks.reset();
    staging.clear();
    t.disk.set_faults({});
    t.Stop();
    if (t.options.tier && random.Chance(0.3)) t.ForgetMemory();
    t.Start();
    Begin();
  }

  catalog::Caller Client() {
    const auto n = static_cast<std::uint8_t>(1 + random.Below(3));
    catalog::Caller caller{n, {}};
    caller.owner[0] = std::byte{static_cast<std::uint8_t>(n / 2 + 1)};
    return caller;
  }

  std::vector<std::byte> Bytes(std::uint64_t n, std::uint16_t group, std::uint64_t put) {
    std::vector<std::byte> bytes(1000 + 40 * (n % 5 == 0 ? 2000 : n));
    FillRandom(SplitMix(n * 64 + group) ^ put, bytes);
    std::memcpy(bytes.data(), &put, 8);
    return bytes;
  }

  Task<void> Write(Executor&, catalog::Caller caller, std::vector<store::PartWrite> parts, Instant deadline) {
    std::vector<PutId> held;
    for (const store::PartWrite& part : parts) {
      if (part.held) held.push_back(part.put_id);
    }
    std::vector<std::uint64_t> numbers;
    for (const store::PartWrite& part : parts) numbers.push_back(part.put_id.low);
    co_await t.store->Write(caller, ns.slot, std::move(parts), deadline);
    // What is still under way when a drop begins may come before it or after.
    for (const std::uint64_t put : numbers) answered[put] = ++events;
    if (!held.empty() && SplitMix(held[0].low) % 3 != 0) {
      if (SplitMix(held[0].low) % 2 == 0) {
        (void)co_await t.store->Publish(caller, ns.slot, held);
      } else {
        (void)co_await t.store->Abandon(caller, ns.slot, held);
      }
    }
  }
  void StartWrite() {
    std::vector<store::PartWrite> parts;
    std::uint64_t n = random.Below(kBlocks);
    std::vector<std::uint64_t> chain{n};
    if (random.Chance(0.6)) {
      while (ParentOf(chain.back())) chain.push_back(*ParentOf(chain.back()));
    }
    const bool held = random.Chance(0.1);
    for (std::size_t i = chain.size(); i-- > 0;) {
      const auto group = static_cast<std::uint16_t>(random.Below(spec.groups.size()));
      const std::uint64_t put = ++puts;
      staging.push_back(Bytes(chain[i], group, put));
      store::PartWrite& part = parts.emplace_back();
      part.key = Key(chain[i]);
      if (const auto parent = ParentOf(chain[i])) part.parent = Key(*parent);
      part.group = group;
      part.put_id = {7, put};
      part.from = staging.back();
      part.held = held;
      if (random.Chance(0.05)) part.ttl_s = static_cast<std::uint32_t>(1 + random.Below(20));
    }
    tasks->Spawn(Write(t.loop->executor(), Client(), std::move(parts), t.clock.Now().PlusUs(2'000'000)));
  }

  Task<void> Drop(Executor&, std::uint64_t n) {
    const std::uint64_t before = ++events;
    const BlockKey key = Key(n);
    const auto dropped = co_await t.store->Drop(ns.slot, std::span(&key, 1));
    if (!dropped) co_return;
    // Acknowledged: nothing that was put before, of it or below it.
    for (std::uint64_t block = 0; block < kBlocks; ++block) {
      for (std::optional<std::uint64_t> at = block; at; at = ParentOf(*at)) {
        if (*at == n) floor[block] = std::max(floor[block], before);
      }
    }
  }
  Task<void> DropAll(Executor&) {
    const std::uint64_t before = ++events;
    const auto dropped = co_await t.store->DropNamespace(ns.slot);
    if (!dropped) co_return;
    ns.incarnation = dropped->second;
    for (std::uint64_t block = 0; block < kBlocks; ++block) floor[block] = std::max(floor[block], before);
  }
  Task<void> Lease(Executor&, catalog::Caller caller, std::vector<catalog::BlockName> names) {
    auto grant =
        co_await t.store->Acquire(caller, ns.slot, names, 3'000'000, t.clock.Now().PlusUs(1'000'000));
    if (grant && grant->lease != 0 && SplitMix(grant->lease) % 2 == 0)
      (void)t.store->Release(caller, grant->lease);
  }
  Task<void> Hold(Executor&, catalog::Caller caller, std::vector<BlockKey> chain) {
    (void)co_await t.store->Hold(caller, ns.slot, chain, 2'000'000);
  }
  Task<void> Ask(Executor&, std::vector<BlockKey> chain, PromptHints hints) {
    const auto runs = co_await t.store->MatchRest(ns.slot, 0, chain);
    if (!runs) co_return;
    std::size_t known = 0;
    for (const MatchRun& run : *runs) known += run.blocks;
    t.store->NotePrompt(ns.slot, {.keys = std::move(chain),
                                  .first_new = known,
                                  .first_asked = known,
                                  .matched = known,
                                  .hints = hints});
  }
  Task<void> Report(Executor&, std::vector<catalog::BlockName> names) {
    (void)co_await t.store->ReportBad(ns.slot, names);
  }
  Task<void> Gone(Executor&, catalog::Caller caller) { co_await t.store->SessionEnded(caller, true); }

  std::vector<catalog::BlockName> Some() {
    std::vector<catalog::BlockName> names;
    for (int i = 0; i < 4; ++i) {
      names.push_back(
          {Key(random.Below(kBlocks)), static_cast<std::uint16_t>(random.Below(spec.groups.size()))});
    }
    return names;
  }
  std::vector<BlockKey> Chain() {
    std::vector<BlockKey> chain;
    for (std::optional<std::uint64_t> at = random.Below(kBlocks); at; at = ParentOf(*at)) {
      chain.insert(chain.begin(), Key(*at));
    }
    return chain;
  }

  void Step() {
    Executor& executor = t.loop->executor();
    const std::uint64_t dice = random.Below(100);
    if (tasks->size() < 12) {
      if (dice < 45) {
        StartWrite();
      } else if (dice < 52) {
        tasks->Spawn(Drop(executor, random.Below(kBlocks)));
      } else if (dice < 53) {
        tasks->Spawn(DropAll(executor));
      } else if (dice < 63) {
        tasks->Spawn(Lease(executor, Client(), Some()));
      } else if (dice < 68) {
        tasks->Spawn(Hold(executor, Client(), Chain()));
      } else if (dice < 70) {
        tasks->Spawn(Report(executor, Some()));
      } else if (dice < 71) {
        tasks->Spawn(Gone(executor, Client()));
      } else if (dice < 75) {
        t.clock.AdvanceUs(static_cast<std::int64_t>(random.Below(4'000'000)));
      } else if (dice < 76) {
        t.clock.StepWall(-static_cast<std::int64_t>(random.Below(30)));
      } else if (dice < 80) {
        auto touched = t.store->Touch(ns.slot, {});
        for (int i = 0; i < 3; ++i) t.store->TouchPlace(static_cast<arena::Place>(random.Below(20'000)), 2);
      } else if (dice > 82 && dice < 88) {
        tasks->Spawn(Ask(executor, Chain(),
                         {.outlook = static_cast<Outlook>(random.Below(4)),
                          .importance = static_cast<Importance>(random.Below(4))}));
      } else if (dice == 88) {
        if (t.options.tier) FlashOf(t).SetBudget(kBudgets[random.Below(4)]);
      } else if (dice == 80) {
        Crash();
      } else if (dice == 81) {
        t.disk.set_faults([n = random.Below(4)](const io::IoRequest&, const std::string&) mutable {
          return n-- == 1 ? io::Fault{io::FaultKind::kIoError, 0} : io::Fault{};
        });
      } else if (dice == 82) {
        Damage();
      }
    }
    for (std::uint64_t i = random.Below(4); i > 0 && !t.movers->waiting.empty(); --i) {
      t.movers->MoveOne(random.Below(t.movers->waiting.size()));
    }
    if (random.Chance(0.3)) t.store->Tick();
    for (std::uint64_t i = random.Below(3); i > 0; --i) t.loop->executor().RunReady(1 + random.Below(4));
    if (random.Chance(0.3)) t.loop->PollOnce();
    if (random.Chance(0.3)) Check();
  }

  void Damage() {
    const std::uint64_t n = random.Below(kBlocks);
    arena::Reader<arena::RealWords> reader(t.words, t.arena, t.index);
    const auto found = reader.Find(reader.Begin(ns.slot, 0), 0, Key(n));
    if (found) t.arena.slot(found->place)[random.Below(found->body_bytes)] ^= std::byte{16};
  }

  void Check() {
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      for (std::uint16_t g = 0; g < spec.groups.size(); ++g) {
        const auto bytes = t.Read(ns.slot, Key(n), g);
        if (!bytes) continue;
        std::uint64_t put;
        std::memcpy(&put, bytes->data(), 8);
        const std::vector<std::byte> wanted = Bytes(n, g, put);
        ASSERT_EQ(bytes->size(), wanted.size()) << "block " << n;
        ASSERT_EQ(std::memcmp(bytes->data(), wanted.data(), wanted.size()), 0) << "block " << n;
        if (answered[put] != 0) {
          ASSERT_GT(answered[put], floor[n]) << "block " << n << " came back";
        }
      }
    }
    ASSERT_LE(t.store->TakeLongestStep(), kStepTouches);
    ASSERT_LE(t.store->occupancy().pending, 16u);
    if (t.options.store.max_blocks > 0) {
      ASSERT_LE(t.store->occupancy().records, t.options.store.max_blocks);
    }
  }

  // From the first block of its chain, wherever they lie.
  bool Reachable(std::uint64_t n) {
    std::vector<BlockKey> chain;
    for (std::optional<std::uint64_t> at = n; at; at = ParentOf(*at)) chain.insert(chain.begin(), Key(*at));
    t.movers->paused = false;
    const auto runs = t.Run(t.store->MatchRest(ns.slot, 0, chain));
    t.movers->paused = true;
    std::size_t blocks = 0;
    for (const MatchRun& run : *runs) blocks += run.blocks;
    if (spec.groups.size() == 1) return blocks == chain.size();
    return t.options.tier || Found(*ParentOf(n), 0);
  }
  bool Found(std::uint64_t n, std::uint16_t group) {
    arena::Reader<arena::RealWords> reader(t.words, t.arena, t.index);
    return reader.Find(reader.Begin(ns.slot, 0), group, Key(n)).has_value();
  }

  void CheckAtRest() {
    Settle();
    Check();
    std::uint64_t records = 0;
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      for (std::uint16_t g = 0; g < spec.groups.size(); ++g) {
        arena::Reader<arena::RealWords> reader(t.words, t.arena, t.index);
        const auto found = reader.Find(reader.Begin(ns.slot, 0), g, Key(n));
        if (!found) continue;
        ++records;
        if (spec.groups[0].reach != Reach::kFull || !ParentOf(n)) continue;
        ASSERT_TRUE(Reachable(n)) << n << " is not reachable";
      }
    }
    Settle();
    if (!t.options.tier) {
      ASSERT_EQ(records, t.store->occupancy().records);
    }
    records = t.store->occupancy().records;
    ASSERT_EQ(t.slots->counts().used_slots, records + t.store->occupancy().pending);
    t.clock.AdvanceUs(61'000'000);
    t.Tick();
    ASSERT_EQ(t.store->occupancy().pending, 0u);
    ASSERT_EQ(t.store->occupancy().leases, 0u);
    ASSERT_EQ(t.store->occupancy().leased_blocks, 0u);
    if (!t.options.tier) {
      ASSERT_EQ(t.store->occupancy().tombstones, 0u);
    }
    Settle();
    ASSERT_EQ(t.slots->counts().used_slots, t.store->occupancy().records);
    // Everything may go again.
    t.movers->paused = false;
    auto dropped = t.Run(t.store->DropNamespace(ns.slot));
    t.disk.set_faults({});
    if (!dropped) dropped = t.Run(t.store->DropNamespace(ns.slot));
    ASSERT_TRUE(dropped.has_value());
    Settle();
    ASSERT_EQ(t.slots->counts().used_slots, 0u);
    ASSERT_EQ(t.store->occupancy().blocks, 0u);
    if (t.options.tier) {
      ASSERT_EQ(FlashOf(t).live_bytes(), 0u);
    }
  }

  Random random;
  const NamespaceSpec spec;
  store::TestStore t;
  store::Attached ns;
  std::optional<TaskGroup> tasks;
  std::deque<std::vector<std::byte>> staging;
  std::uint64_t puts = 0;
  std::uint64_t events = 0;
  std::map<std::uint64_t, std::uint64_t> answered;  // when a put's call ended
  std::map<std::uint64_t, std::uint64_t> floor;
};

void RunSeeds(const NamespaceSpec& spec, std::uint64_t first, std::uint64_t count, bool flash = false) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed, spec, flash);
    for (int i = 0; i < 400 && !testing::Test::HasFatalFailure(); ++i) world.Step();
    if (!testing::Test::HasFatalFailure()) world.CheckAtRest();
    if (testing::Test::HasFatalFailure()) return;
  }
}

std::uint64_t Seeds() {
  const char* seeds = std::getenv("CISTERN_TEST_SEEDS");
  return seeds == nullptr ? 4 : std::strtoull(seeds, nullptr, 10);
}

TEST(BlockStoreRandomTest, P7OneFullGroup) {
  NamespaceSpec spec;
  spec.name = "full";
  spec.groups = {{.name = "full"}};
  RunSeeds(spec, 1000, Seeds());
}

TEST(BlockStoreRandomTest, P7AFullGroupAndAWindow) {
  NamespaceSpec spec;
  spec.name = "both";
  spec.groups = {{.name = "full"}, {.name = "local", .reach = Reach::kWindow, .window_tokens = 3}};
  RunSeeds(spec, 2000, Seeds());
}

TEST(BlockStoreRandomTest, P7AWindowAlone) {
  NamespaceSpec spec;
  spec.name = "window";
  spec.groups = {{.name = "local", .reach = Reach::kWindow, .window_tokens = 3}};
  RunSeeds(spec, 3000, Seeds());
}

TEST(BlockStoreRandomTest, P7OneFullGroupOverFlash) {
  NamespaceSpec spec;
  spec.name = "full";
  spec.groups = {{.name = "full"}};
  RunSeeds(spec, 4000, Seeds(), true);
}

TEST(BlockStoreRandomTest, P7AFullGroupAndAWindowOverFlash) {
  NamespaceSpec spec;
  spec.name = "both";
  spec.groups = {{.name = "full"}, {.name = "local", .reach = Reach::kWindow, .window_tokens = 3}};
  RunSeeds(spec, 5000, Seeds(), true);
}

TEST(BlockStoreRandomTest, P7AWindowAloneOverFlash) {
  NamespaceSpec spec;
  spec.name = "window";
  spec.groups = {{.name = "local", .reach = Reach::kWindow, .window_tokens = 3}};
  RunSeeds(spec, 6000, Seeds(), true);
}

}  // namespace
}  // namespace cistern
