// SPDX-License-Identifier: Apache-2.0
#include "world.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "client.h"

namespace cistern::storm {
namespace {

constexpr std::uint64_t kFaultsARun = 260;
constexpr std::uint64_t kMaxSwitches = 3'000'000;
// Many times what a run takes: one whose faults find nothing to do ends with that.
constexpr std::uint64_t kOperationsARun = 60'000;
// So many without a fault that counted: what fills the store up now ends with time alone.
constexpr std::uint64_t kStuckSwitches = 20'000;
constexpr arena::Geometry kLargest{4096, SharedBytes::kMaxHeads};

// Two chunks and more sizes than that: memory changes hands all the time.
std::uint32_t HeadsOf(std::uint64_t seed) {
  static constexpr std::uint32_t kHeaders[] = {2, 2, 1, 2, 3, 2, 1, 2};
  return kHeaders[SplitMix(seed) % std::size(kHeaders)];
}

// One world in eight has the simulated tier, of the others every second one flash.
TierKind TierOf(std::uint64_t seed) {
  if (SplitMix(seed ^ 0x51a7) % 8 == 0) return TierKind::kSimulated;
  return SplitMix(seed ^ 0xf1a5) % 2 == 0 ? TierKind::kFlash : TierKind::kMemory;
}

std::byte* Map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes + arena::kSlotsBoundary, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CISTERN_ASSERT(memory != MAP_FAILED);
  return static_cast<std::byte*>(memory);
}

GroupSpec FullGroup(std::vector<std::uint64_t> part_bytes) {
  return {.name = "full", .reach = Reach::kFull, .window_tokens = 0, .part_bytes = std::move(part_bytes)};
}
GroupSpec WindowGroup(std::string name, std::uint32_t tokens, std::vector<std::uint64_t> part_bytes) {
  return {.name = std::move(name),
          .reach = Reach::kWindow,
          .window_tokens = tokens,
          .part_bytes = std::move(part_bytes)};
}

}  // namespace

PutId PutIdOf(PutNo number) { return {SplitMix(number), number}; }

SharedBytes::SharedBytes()
    : arena_bytes_(kLargest.file_bytes()),
      index_bytes_(arena::Geometry{512, kMaxHeads}.index_bytes()),
      arena_(Map(arena_bytes_)),
      index_(Map(index_bytes_)) {}

SharedBytes::~SharedBytes() {
  munmap(arena_, arena_bytes_ + arena::kSlotsBoundary);
  munmap(index_, index_bytes_ + arena::kSlotsBoundary);
}

void SharedBytes::Clear() {
  madvise(arena_, arena_bytes_ + arena::kSlotsBoundary, MADV_DONTNEED);
  madvise(index_, index_bytes_ + arena::kSlotsBoundary, MADV_DONTNEED);
}

World::World(std::uint64_t seed, std::optional<TierKind> tier, SharedBytes& bytes, Logger& log, bool trace)
    : seed_(seed),
      bytes_(bytes),
      clock_({1'700'000'000}),
      scheduler_(seed, clock_),
      damage_(faults_),
      words_(scheduler_, damage_, [this](const std::byte* from, std::size_t n) { CheckSource(from, n); }),
      geometry_{seed % 4 == 0 ? 512u : 4096u, HeadsOf(seed)},
      arena_(bytes.arena(), geometry_),
      index_(bytes.index(), geometry_.bucket_count()),
      reader_(plain_, arena_, index_),
      disk_(SplitMix(seed ^ 1)),
      log_(log),
      model_(3, trace) {
  FormatMemory();
  disk_.set_faults([this](const io::IoRequest& request, const std::string& path) {
    return path.starts_with("flash") ? AskDevice(request, path) : AskDisk(request);
  });
  tier_kind_ = tier ? *tier : TierOf(seed);
  static constexpr std::uint64_t kNarrow[] = {4, 4, UINT64_MAX};  // one in so many, of each tier
  narrow_ = SplitMix(seed ^ 0x0a44) % kNarrow[static_cast<std::size_t>(tier_kind_)] == 0;
  words_.SlowEntries(bytes.index() + arena::kIndexBucketsOffset,
                     index_.entry_count() * sizeof(arena::IndexEntry), narrow_ ? 5 : 200);
  MakeTrees();
  MakeOptions();
  if (tier_kind_ == TierKind::kFlash) MakeFlash();
  if (tier_kind_ == TierKind::kSimulated) MakeSimulated();
  std::uint32_t engines = 2 + static_cast<std::uint32_t>(random().Below(2));
  for (std::uint32_t i = 0; i < engines; ++i) {
    engines_.push_back(std::make_unique<Engine>());
    NewToken(*engines_.back());
  }
  for (std::uint32_t i = 0; i < 2 * engines; ++i)
    clients_.push_back(std::make_unique<Client>(*this, i, i / 2));
}

World::~World() = default;

void World::FormatMemory() {
  bytes_.Clear();
  arena_.header()->magic = arena::kArenaMagic;
  arena_.header()->version = arena::kFormatVersion;
  arena_.header()->alignment = geometry_.alignment;
  arena_.header()->header_count = geometry_.header_count;
  index_.header()->magic = arena::kIndexMagic;
  index_.header()->version = arena::kFormatVersion;
  index_.header()->bucket_count = geometry_.bucket_count();
}

void World::NewToken(Engine& engine) {
  engine.number = ++tokens_;
  engine.token = {};
  const std::uint64_t pair[2] = {SplitMix(tokens_), tokens_};
  static_assert(sizeof(engine.token) == sizeof(pair));
  std::memcpy(&engine.token, pair, sizeof(pair));
  engine.held.clear();
  engine.unwritten.clear();
  engine.unfinished.clear();
}

void World::MakeTrees() {
  Random& random = scheduler_.random();
  static constexpr std::uint64_t kSmall[] = {4096, 8192, 12288, 1000, 5000, 4096 * 7, 20'000};
  auto small = [&] { return kSmall[random.Below(std::size(kSmall))]; };
  auto large = [&] { return random.Below(3) == 0 ? 66'000 + random.Below(100'000) : small(); };
  trees_.resize(3);
  for (std::uint32_t ns = 0; ns < trees_.size(); ++ns) {
    IncarnationTree& tree = trees_[ns];
    tree.spec.name = Text("storm-", ns);
    tree.spec.fields = {{"model", Text("m", ns)}, {"dtype", "bf16"}};
    tree.spec.block_tokens = 16;
    // Of parts of which one is less than half of the block, for who asks for that alone.
    auto ranks = [&] { return FullGroup({small(), small(), small(), small()}); };
    switch (narrow_ ? 6 : random.Below(6)) {
      case 6: tree.spec.groups = {has_lower_tier() ? FullGroup({8192}) : FullGroup({})}; break;
      case 0: tree.spec.groups = {has_lower_tier() ? ranks() : FullGroup({small()})}; break;
      case 1: tree.spec.groups = {FullGroup({small(), large()})}; break;
      case 2:
        tree.spec.groups = {has_lower_tier() ? ranks() : FullGroup({large()}),
                            WindowGroup("window", 32, {small()})};
        break;
      case 3: tree.spec.groups = {FullGroup({})}; break;
      case 4: tree.spec.groups = {WindowGroup("window", 48, {small(), small()})}; break;
      default: tree.spec.groups = {FullGroup({small(), small(), small()}), FullGroup({small()})}; break;
    }
    if (tree.spec.groups.size() == 2) tree.spec.groups[1].name = "other";
    tree.free_length = tree.spec.groups[0].part_bytes.empty();
    for (std::uint16_t group = 0; group < tree.groups(); ++group) {
      const GroupSpec& spec = tree.spec.groups[group];
      bool full = spec.reach == Reach::kFull;
      if (full && !tree.first_full) tree.first_full = group;
      tree.match.push_back(
          {group, full ? 0 : arena::WindowBlocks(spec.window_tokens, tree.spec.block_tokens)});
    }
  }
  talks_.resize(trees_.size());
  for (auto& talks : talks_) {
    for (std::uint64_t& talk : talks) talk = ++conversations_;
  }
  slots_.resize(trees_.size());
  incarnations_.resize(trees_.size());
}

// What a node is told when it starts, which is not always what it was told before: what memory holds then may
// be more.
std::uint64_t World::SomeMaxBlocks() {
  if (has_lower_tier()) return 3 + random().Below(24);
  return random().Below(4) == 0 ? 0 : 8 + random().Below(60);
}

void World::MakeOptions() {
  Random& random = scheduler_.random();
  options_.max_blocks = SomeMaxBlocks();
  options_.eviction = random.Below(8) == 0 ? EvictionPolicy::kLru : EvictionPolicy::kReuse;
  // So few that some are forgotten.
  if (random.Below(8) == 0) options_.max_noted_blocks = 1 + static_cast<std::uint32_t>(random.Below(20));
  if (narrow_) options_.max_blocks = 2;
  options_.max_pending = 4 + static_cast<std::uint32_t>(random.Below(60));
  options_.pending_us = random.Below(2) == 0 ? 30'000'000 : 20'000;
  options_.max_leases = 4 + static_cast<std::uint32_t>(random.Below(30));
  options_.max_leased_blocks = 16 + static_cast<std::uint32_t>(random.Below(100));
  options_.max_tombstones = 64;
  // Who copies: the core, the movers, or now these and now those.
  static constexpr std::uint64_t kCoreCopies[] = {0, 6000, 40'000, 1'000'000};
  options_.core_copy_bytes = kCoreCopies[random.Below(std::size(kCoreCopies))];
}

// Of one size of slots and with trailers at several places: a shorter body leaves a longer one's trailer as
// it was.
std::uint64_t World::NarrowLength() {
  const std::uint64_t unit = geometry_.alignment;
  return unit == 512 ? 1 + random().Below(7 * unit) : 16 * unit + 1 + random().Below(2 * unit);
}

PutNo World::MakePut(const BlockId& block, Engine& engine, BlockCode parent, std::uint32_t ttl_s, bool held,
                     std::uint64_t conversation) {
  const IncarnationTree& tree = trees_[block.ns];
  NoteUseBesideEnds(block.ns, block.code, conversation);
  Put put;
  put.block = block;
  put.parent = parent;
  put.owner = engine.number;
  put.ttl_s = ttl_s;
  put.held = held;
  put.conversation = conversation;
  for (std::uint64_t bytes : tree.spec.groups[block.group].part_bytes) put.parts.push_back({.bytes = bytes});
  if (put.parts.empty()) {
    static constexpr std::uint64_t kLengths[] = {4096, 9000, 40'000, 130'000, 400'000, 1'000'000};
    std::uint64_t bytes = 1 + random().Below(kLengths[random().Below(random().Below(6) + 1)]);
    if (narrow_) bytes = NarrowLength();
    put.parts.push_back({.bytes = bytes});
  }
  PutNo number = model_.NewPut(std::move(put));
  engine.unfinished.push_back(number);
  if (held) engine.held.push_back(number);
  return number;
}

// ---- time ------------------------------------------------------------------------------------------------

std::uint64_t World::SureTime() const { return std::max<std::uint64_t>(clock_.Wall().seconds, ticked_wall_); }

// A node that read the wall clock earlier within the same second may be that much ahead.
std::uint64_t World::LatestTime() { return latest_.Seconds(clock_.Now(), clock_.Wall().seconds) + 1; }

// ---- nodes -----------------------------------------------------------------------------------------------

SimNode* World::node() { return !nodes_.empty() && nodes_.back()->serving() ? nodes_.back().get() : nullptr; }

void World::Boot() {
  if (!nodes_.empty()) {
    SimNode& last = *nodes_.back();
    if (!last.gone() || !last.core()->ended()) return;
    if (!last.start().ok() && failed_node_ != &last) {
      failed_node_ = &last;
      disk_faulty_ = false;
      NoteStart(last.start());
      ++failed_starts;
      model_.Trace("node did not start: ", last.start().ToString());
      if (++failed_starts_ > 40) Violation(Text("the node does not start: ", last.start().ToString()));
    }
  }
  // The dead one's stores are all in memory before its lock is free.
  if (scheduler_.has_orphans() || random().Below(4) != 0) return;
  if (!nodes_.empty() && !warm_known_) RememberWarm();
  nodes_.clear();
  failed_node_ = nullptr;
  if (flash_) Resize();
  if (boots_ > 0 && !narrow_ && random().Below(4) == 0) options_.max_blocks = SomeMaxBlocks();
  device_faults_at_boot_ = device_faults_;
  media_damaged_at_boot_ = MediaDamaged();
  arena_.header()->boot_count++;
  ++starts;
  model_.Trace("node starts");
  SimNode::Surroundings around{
      scheduler_,
      words_,
      disk_,
      log_,
      arena_,
      index_,
      options_,
      flash_,
      simulated_,
      media_,
      SplitMix(seed_ + ++node_seeds_),
      1 + static_cast<std::uint32_t>(random().Below(2)),
      [this](SimNode& node) { Recovered(node); },
      [this](SimNode& node) { return Audit(node); },
      [this](SimNode& node) { return Doubts(node); },
      [this](SimNode& node, std::vector<LowerBlock> blocks) { Told(node, std::move(blocks)); },
      [this](SimNode& node, std::uint64_t wall_s) {
        Ticked(wall_s);
        NoteCounters(node);
      }};
  nodes_.push_back(std::make_unique<SimNode>(around));
}

void World::Recovered(SimNode& node) {
  model_.Trace("node recovered");
  failed_starts_ = 0;
  boots_++;
  carvings_ = 0;
  CheckWarm(node);
  if (has_lower_tier()) CheckWarmLower(node);
  warm_known_ = false;
  media_known_ = media_.id();
  media_unknown_ = false;
  planned_.reset();
  clean_start_ = false;
  power_was_cut_ = shrunk_ = false;
  dropping_.clear();
  ends_.clear();
  reported_.clear();
  uses_.clear();  // a restart forgets who has hit what
  most_blocks_ = node.store().occupancy().records;
}

// Faults that the load does by itself: memory that is full, chunks that change their size.
void World::NoteCounters(SimNode& node) {
  if (has_lower_tier()) NoteDevices(node);
  std::uint64_t carvings = node.slots().counts().carvings;
  for (; carvings > carvings_ && node.under_way() > 0 && faults_.Wants(Fault::kRecarve); ++carvings_) {
    faults_.Injected(Fault::kRecarve);
    faults_.Seen(Fault::kRecarve);
  }
  carvings_ = carvings;
}

void World::NoRoom() {
  if (!faults_.Wants(Fault::kMemoryFull)) return;
  faults_.Injected(Fault::kMemoryFull);
  faults_.Seen(Fault::kMemoryFull);
}

std::optional<std::uint64_t> World::IncarnationOf(std::uint32_t ns) const {
  if (incarnations_[ns] == 0) return std::nullopt;
  return incarnations_[ns];
}

void World::SetAttached(std::uint32_t ns, std::uint32_t slot, std::uint64_t incarnation) {
  slots_[ns] = slot;
  incarnations_[ns] = incarnation;
}

// ---- drops, touches, staging -----------------------------------------------------------------------------

void World::Drop(Call& call, std::uint32_t ns, std::vector<BlockCode> codes) {
  drops_asked_++;
  Moment asked = model_.Now();
  bool all = codes.empty();
  if (all) codes.push_back(0);
  for (BlockCode code : codes) {
    if (all) {
      DisturbAll(ns);
    } else {
      Disturb(ns, code);
    }
    dropping_.emplace_back(ns, code);
    model_.Trace("drop of namespace ", ns, " forest ", code / kTreeBlocks, " block ", code % kTreeBlocks,
                 " asked");
  }
  std::uint64_t incarnation = call.incarnation;
  call.answered = [this, ns, codes, asked, all, incarnation](Call& answer) {
    model_.Trace("drop asked at ", asked, " answered: ", answer.status.ToString());
    if (answer.lost || !answer.status.ok()) return;  // it may have come to pass, or may yet at a restart
    for (BlockCode code : codes) {
      auto at = std::ranges::find(dropping_, std::pair(ns, code));
      if (at != dropping_.end()) dropping_.erase(at);
      if (all) {
        model_.NamespaceDropped(ns, asked);
        trees_[ns].gone.insert(incarnation);
        if (answer.incarnation_now == incarnation) Violation(Text("namespace ", ns, " kept its incarnation"));
        DisturbAll(ns);
      } else {
        model_.Dropped(ns, code, asked);
        Disturb(ns, code);
      }
    }
    CheckLogged(ns, codes, incarnation, answer.value);
  };
}

// A drop that found something is in the durable log by the time that it is acknowledged (R10). Where no group
// is full, what it found may have been orphans.
void World::CheckLogged(std::uint32_t ns, const std::vector<BlockCode>& codes, std::uint64_t incarnation,
                        std::uint64_t blocks) {
  if (blocks == 0 || codes.front() == 0 || trees_[ns].drop_ends_orphans()) return;
  std::span<const std::byte> journal = disk_.Durable("node/journal");
  bool logged = std::ranges::any_of(codes, [&](BlockCode code) {
    // As in a tombstone's payload: incarnation, length, key.
    BlockKey key = KeyOf(ns, code);
    std::vector<std::byte> bytes(9 + key.length);
    std::memcpy(bytes.data(), &incarnation, 8);
    std::memcpy(bytes.data() + 8, &key.length, 1);
    std::memcpy(bytes.data() + 9, key.bytes.data(), key.length);
    return !std::ranges::search(journal, bytes).empty();
  });
  if (!logged)
    Violation(Text("a drop of ", blocks, " blocks of namespace ", ns, " was acknowledged and is not logged"));
}

void World::LoseTouches(const std::vector<std::pair<BlockId, std::uint64_t>>& touches) {
  for (auto& [block, what] : touches) {
    if (std::ranges::find(lost_touches_, block) != lost_touches_.end()) continue;
    faults_.Injected(Fault::kLostTouches);
    lost_touches_.push_back(block);
    if (!faults_.Wants(Fault::kLostTouches)) break;
  }
}

void World::NoteRead(const BlockId& block) {
  auto lost = std::ranges::find(lost_touches_, block);
  if (lost != lost_touches_.end()) {
    lost_touches_.erase(lost);
    faults_.Seen(Fault::kLostTouches);
  }
  if (clocks_back_ == 0) return;
  for (PutNo put : model_.PutsOf(block)) {
    if (model_.put(put).ttl_s == 0) continue;
    faults_.Seen(Fault::kClockBack, clocks_back_);
    clocks_back_ = 0;
    return;
  }
}

std::optional<BlockId> World::Curious() {
  if (!curious_.empty() && Chance(60)) {
    auto at = curious_.begin() + static_cast<std::ptrdiff_t>(random().Below(curious_.size()));
    BlockId block = *at;
    if (Chance(50) || curious_.size() > 8) curious_.erase(at);
    return block;
  }
  if (!lost_touches_.empty() && Chance(10)) return lost_touches_.back();
  return std::nullopt;
}

void World::AddStaging(const std::shared_ptr<Staging>& staging) {
  constexpr std::size_t kGone = 64;
  stagings_.push_back(staging);
  std::size_t gone = 0;
  for (const auto& one : stagings_) gone += one.use_count() == 1;
  std::erase_if(stagings_, [&](const auto& one) { return one.use_count() == 1 && gone-- > kGone; });
}

// What is copied lies in staging, in the arena (a move), or in memory of the node's own.
void World::CheckSource(const std::byte* from, std::size_t bytes) {
  for (const auto& staging : stagings_) {
    const std::byte* begin = staging->bytes.data();
    if (from + bytes <= begin || from >= begin + staging->bytes.size()) continue;
    if (staging.use_count() == 1) Violation("a mover copies from staging that is gone");
    if (staging->writes == 0) Violation("a mover copies from staging that its session has back");
  }
}

// ---- the run ---------------------------------------------------------------------------------------------

void World::Run() {
  std::uint64_t next_fault = 200, counted = 0, counted_at = 0;
  while (!ending_) {
    if (!scheduler_.Step()) break;
    if (nodes_.empty() || nodes_.back()->gone()) Boot();
    LandLate();
    // A power cut shows what a flush did not do, before the next one does it.
    if (lost_flush_ && random().Below(8) == 0) {
      KillSome(random().Below(2) == 0 ? Fault::kCrash : Fault::kReboot, true);
    }
    if (planned_ && node() != nullptr && node()->surveyed()) KillSome(planned_kind_);
    if (torn_due_ && random().Below(4) == 0 && WritesUnderWay()) {
      torn_due_ = false;
      if (faults_.Wants(Fault::kTorn))
        KillSome(random().Below(2) == 0 ? Fault::kCrash : Fault::kReboot, true);
    }
    if (std::exchange(delicate_, false) && faults_.Wants(Fault::kCrash)) InjectOne(Fault::kCrash);
    if (scheduler_.switches() < next_fault) continue;
    if (faults_.total() != counted) {
      counted = faults_.total();
      counted_at = scheduler_.switches();
    } else if (scheduler_.switches() - counted_at > kStuckSwitches) {
      counted_at = scheduler_.switches();
      LatestTime();
      clock_.AdvanceUs(options_.pending_us + 1'000'000);
    }
    // The lower tier's traffic takes more time.
    next_fault = scheduler_.switches() + (5 + random().Below(60)) * (has_lower_tier() ? 16 : 1);
    LatestTime();
    CheckLeases();
    if (has_lower_tier() && node() != nullptr) CheckAcknowledged();
    Inject();
    ending_ = faults_.total() >= kFaultsARun || scheduler_.switches() > kMaxSwitches ||
              operations > kOperationsARun;
  }
  Finish();
  words = words_.words();
}

// Everything that waits ends, and then the store still works.
void World::Finish() {
  ending_ = true;
  disk_faulty_ = false;
  faults_wanted_ = 0;
  deadlines_ = {};
  planned_.reset();
  std::uint64_t began = scheduler_.switches();
  for (auto& client : clients_) client->Die();
  while (node() == nullptr) {
    scheduler_.Step();
    LandLate();
    if (nodes_.empty() || nodes_.back()->gone()) Boot();
    if (scheduler_.switches() - began > kMaxSwitches) Violation("the node does not come back");
  }
  node()->End();
  while (scheduler_.Step()) {
    if (flash_) UnhangDevices();
    if (scheduler_.switches() - began > kMaxSwitches) {
      Violation(Text("calls do not end: ", nodes_.back()->under_way(), " are under way"));
    }
  }
  if (audits_ == 0) Violation("the node ended without being looked at");
}

}  // namespace cistern::storm
