// SPDX-License-Identifier: Apache-2.0
// For tests of the tier: records whose bytes follow from their number, and a world of a simulated disk in
// which a tier starts, dies and starts again.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/random.h"
#include "base/random_bytes.h"
#include "base/task_group.h"
#include "flash/address.h"
#include "flash/buffer.h"
#include "flash/flash_tier.h"
#include "flash/format.h"
#include "io/simulated_loop.h"
#include "record/seal.h"
#include "record/verified_copy.h"

namespace cistern::flash {

inline std::uint32_t ExpiryOf(std::uint64_t number) {
  return 4'000'000'000u + static_cast<std::uint32_t>(number);
}

inline BlockKey KeyOf(std::uint64_t number) {
  BlockKey key;
  key.length = 32;
  Random random(number);
  for (std::size_t i = 0; i < 32; i += 8) {
    const std::uint64_t word = i == 0 ? number : random.Next();
    std::memcpy(key.bytes.data() + i, &word, 8);
  }
  return key;
}

// A record of a block: what it holds follows from its number, so that whoever finds it can tell whether it is
// that one.
struct Block {
  std::uint64_t number = 0;
  std::vector<std::uint32_t> parts;
  std::vector<std::uint32_t> crcs;
  Buffer body;
  std::uint64_t body_bytes = 0;

  Block(BufferPool& pool, std::uint64_t number_in, std::vector<std::uint32_t> parts_in)
      : number(number_in), parts(std::move(parts_in)) {
    for (const std::uint32_t part : parts) body_bytes += part;
    body = pool.Take(RoundUp(body_bytes, 4096));
    FillRandom(number, body.bytes());
    std::uint64_t at = 0;
    for (const std::uint32_t part : parts) {
      for (std::uint64_t in = 0; in < part; in += record::kSegmentBytes) {
        crcs.push_back(
            record::Crc32c(body.data() + at + in, std::min<std::uint64_t>(part - in, record::kSegmentBytes)));
      }
      at += part;
    }
  }
  std::uint64_t record_bytes(std::uint32_t unit) const {
    return record::RecordBytes(body_bytes, static_cast<std::uint32_t>(crcs.size()),
                               static_cast<std::uint32_t>(parts.size()), unit);
  }
  tier::AppendRequest Out(std::uint64_t sequence) const {
    tier::AppendRequest out;
    out.body = body.data();
    out.seal.incarnation = 7;
    out.seal.group = 1;
    out.seal.key = KeyOf(number);
    if (number > 0) out.seal.parent = KeyOf(number - 1);
    out.seal.part_bytes = parts;
    out.seal.segment_crcs = crcs;
    out.sequence = sequence;
    out.born = sequence;
    out.expiry = ExpiryOf(number);
    out.conversation = number % 3;
    return out;
  }
};

// Whether a fetched record is whole, by its own checksums: what the store does before it hands it out.
inline bool BodyHolds(const tier::FetchedRecord& fetched, std::span<const std::byte> record) {
  for (std::uint32_t part = 0; part < fetched.seal.part_count(); ++part) {
    const record::SealView::PartPlace place = fetched.seal.part(part);
    for (std::uint32_t i = 0; i < record::SegmentsOfPart(place.bytes); ++i) {
      const std::uint64_t in = std::uint64_t{i} * record::kSegmentBytes;
      const std::uint64_t bytes = std::min<std::uint64_t>(place.bytes - in, record::kSegmentBytes);
      if (record::Crc32c(record.data() + place.offset + in, bytes) !=
          fetched.seal.segment_crc(place.first_segment + i)) {
        return false;
      }
    }
  }
  return true;
}

// Whether it is, byte for byte, the block that its key names.
inline bool IsItsBlock(const tier::FetchedRecord& fetched, std::span<const std::byte> record) {
  std::uint64_t number = 0;
  const BlockKey key = fetched.seal.key();
  std::memcpy(&number, key.bytes.data(), 8);
  if (!fetched.seal.HasKey(KeyOf(number))) return false;
  std::vector<std::byte> expected(RoundUp(fetched.seal.body_bytes(), 4096));
  FillRandom(number, expected);
  return std::memcmp(expected.data(), record.data(), fetched.seal.body_bytes()) == 0;
}

// What a test keeps of a record that it appended or found.
struct Kept {
  std::uint64_t number = 0;
  std::uint64_t sequence = 0;
  tier::Location location;
  std::uint64_t bytes = 0;

  std::uint32_t region() const { return AddressOf(location).region; }
  std::uint32_t unit() const { return AddressOf(location).unit; }
};

inline std::uint64_t NumberOf(const tier::TierEntry& entry) {
  std::uint64_t number = 0;
  std::memcpy(&number, entry.key.bytes.data(), 8);
  EXPECT_EQ(entry.key, KeyOf(number));
  return number;
}

// An owner that knows what lives, and keeps at a reclaim what the test wants kept: nothing, where it does not
// say.
class TestOwner final : public tier::TierOwner {
 public:
  TestOwner(Executor& executor, std::uint64_t& sequence) : executor_(executor), sequence_(sequence) {}
  Executor& executor() const { return executor_; }

  void Add(const Kept& kept) { live[kept.location] = kept; }
  void Forget(const tier::Location& location) {
    const auto found = live.find(location);
    if (found == live.end()) return;
    const Kept kept = found->second;
    live.erase(found);
    tier->Forget(location, kept.bytes);
    if (went) went(kept);
  }

  Task<bool> Keep(const tier::TierEntry& entry, std::uint64_t kept_bytes, std::uint64_t room_bytes) override {
    asked.push_back(entry);
    room = entry.location.high;
    while (hold) co_await go_on.Wait();
    if (live.contains(entry.location) && keep && keep(entry, kept_bytes, room_bytes)) co_return true;
    Forget(entry.location);
    co_return false;
  }
  std::optional<tier::MoveStamp> StampOf(const tier::TierEntry& entry) override {
    if (!live.contains(entry.location)) return std::nullopt;
    const tier::MoveStamp stamp{++sequence_, entry.conversation};
    stamps[entry.location] = stamp.sequence;
    if (stamped) stamped(entry, stamp.sequence);
    return stamp;
  }
  void Moved(const tier::TierEntry& entry, tier::Location to) override {
    const auto found = live.find(entry.location);
    if (found == live.end()) return tier->Forget(to, entry.record_bytes);
    Kept kept = found->second;
    Forget(entry.location);
    kept.location = to;
    kept.sequence = stamps[entry.location];
    Add(kept);
    if (moved) moved(kept);
  }
  Task<void> Lose(tier::LocationRange range) override {
    ++losses;
    room = range.first.high;
    std::vector<tier::Location> lost;
    for (const auto& [location, kept] : live) {
      if (range.contains(location)) lost.push_back(location);
    }
    for (const tier::Location& location : lost) Forget(location);
    co_return;
  }
  Task<void> Reclaimed() override {
    ++reclaimed;
    if (freed) freed();
    room.reset();
    co_return;
  }
  void DeviceOut(tier::LocationRange range) override {
    outs.push_back({range.first.high, range.last.high});
    std::erase_if(live, [&](const auto& each) { return range.contains(each.first); });
    tier->Forgotten(range);
  }

  tier::Tier* tier = nullptr;
  std::map<tier::Location, Kept> live;
  std::function<bool(const tier::TierEntry&, std::uint64_t kept_bytes, std::uint64_t room_bytes)> keep;
  std::function<void(const Kept&)> went, moved;  // `moved` says where it lies now
  std::function<void(const tier::TierEntry&, std::uint64_t sequence)> stamped;
  std::function<void()> freed;
  std::vector<tier::TierEntry> asked;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> outs;  // regions
  std::optional<std::uint32_t> room;  // the region that is given up, as far as the owner knows
  std::uint64_t reclaimed = 0;
  std::uint64_t losses = 0;
  bool hold = false;  // Keep waits
  Event go_on;

 private:
  Executor& executor_;
  std::uint64_t& sequence_;
  std::map<tier::Location, std::uint64_t> stamps;
};

// A tier over any loop.
struct TierOn {
  TierOn(io::Loop& loop_in, FlashOptions options_in, std::uint64_t seed)
      : loop(loop_in), options(std::move(options_in)), random(seed), owner(loop.executor(), sequence) {
    log = Logger::ToSink(LogLevel::kInfo, [this](LogLevel level, std::string_view line) {
      const std::scoped_lock lock(mutex);
      lines += Text(line, "\n");
      if (level >= LogLevel::kWarning) warnings += Text(line, "\n");
    });
  }
  Status Open(std::vector<std::uint64_t> known = {}, std::uint64_t journal = 5,
              tier::JournalMark mark = {1, 40}) {
    auto opened = loop.BlockOn(FlashTier::Open(FlashParts{loop, *log, [this] { return random.Next(); }},
                                               options, {journal, std::move(known), mark}));
    if (!opened) return opened.error();
    tier = std::move(*opened);
    owner.tier = tier.get();
    tier->SetOwner(owner);
    return Status();
  }
  Executor& executor() const { return loop.executor(); }

  // Entries of Recover are adopted, all of them.
  Task<void> Keep(std::span<const tier::TierEntry> entries) {
    EXPECT_LE(entries.size(), 512u);
    for (const tier::TierEntry& entry : entries) {
      Kept kept;
      kept.number = NumberOf(entry);
      kept.sequence = entry.sequence;
      kept.location = entry.location;
      kept.bytes = entry.record_bytes;
      found.push_back(kept);
      tier->Adopt(entry.location, entry.record_bytes);
      owner.Add(kept);
    }
    co_await Yield();
  }
  Status Recover() {
    found.clear();
    return loop.BlockOn(
        tier->Recover([this](std::span<const tier::TierEntry> entries) { return Keep(entries); }));
  }

  Task<Result<std::vector<Kept>>> AppendTask(std::vector<std::uint64_t> numbers,
                                             std::vector<std::uint32_t> parts) {
    std::vector<Block> blocks;
    std::vector<tier::AppendRequest> out;
    for (const std::uint64_t number : numbers) blocks.emplace_back(pool, number, parts);
    for (const Block& block : blocks) out.push_back(block.Out(++sequence));
    auto locations = co_await tier->Append(out);
    if (!locations) co_return Error(locations.error());
    std::vector<Kept> kept;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      kept.push_back(
          {blocks[i].number, out[i].sequence, (*locations)[i], blocks[i].record_bytes(options.unit)});
      owner.Add(kept.back());
    }
    co_return kept;
  }
  Result<std::vector<Kept>> Append(std::vector<std::uint64_t> numbers, std::vector<std::uint32_t> parts) {
    return loop.BlockOn(AppendTask(std::move(numbers), std::move(parts)));
  }

  bool InService(std::size_t device) const { return tier->devices()[device].in_service; }
  // Turns until `done`, giving up regions where they are wanted, or all the same.
  template <class Done>
  void ReclaimUntil(bool wanted, Done done) {
    while (!done()) {
      tier->Reclaim(wanted);
      loop.BlockOn(Moment());
    }
  }
  // As long as from one Tick of the owner to the next: regions close meanwhile.
  Task<void> Moment() { co_await SleepUntil(loop.clock().Now().PlusUs(100)); }
  // A region closes beside the appends that follow it.
  void GiveUpOne() {
    ReclaimUntil(true, [this, before = owner.reclaimed] { return owner.reclaimed > before; });
  }

  // What the tier says of a location, without looking at whether it is the record that was meant.
  Task<Status> AskTask(Kept kept) {
    Buffer buffer = pool.Take(kept.bytes);
    auto fetched = co_await tier->Fetch(kept.location, buffer.bytes().first(kept.bytes), nullptr);
    co_return fetched ? Status() : fetched.error();
  }
  Status Ask(const Kept& kept) { return loop.BlockOn(AskTask(kept)); }
  // ok: whole and exactly what its key names. kMiss also when the body fails.
  Task<Status> FetchTask(Kept kept) {
    Buffer buffer = pool.Take(kept.bytes);
    const auto record = buffer.bytes().first(kept.bytes);
    auto fetched = co_await tier->Fetch(kept.location, record, nullptr);
    if (!fetched) co_return fetched.error();
    if (!BodyHolds(*fetched, record)) {
      tier->ReportBad(kept.location);
      co_return Status(Code::kMiss, "body");
    }
    EXPECT_TRUE(IsItsBlock(*fetched, record)) << "wrong bytes under a right seal";
    if (!fetched->seal.HasKey(KeyOf(kept.number)) || fetched->stamp.sequence != kept.sequence) {
      co_return Status(Code::kMiss, "another record");
    }
    co_return Status();
  }
  Status Fetch(const Kept& kept) { return loop.BlockOn(FetchTask(kept)); }
  void Forget(const Kept& kept) { owner.Forget(kept.location); }
  void Close() {
    if (tier != nullptr) loop.BlockOn(tier->Close());
    tier.reset();
  }
  bool Logged(std::string_view text) {
    log.reset();  // what was logged is then written
    const std::scoped_lock lock(mutex);
    return lines.find(text) != std::string::npos;
  }
  std::string Warnings() {
    log.reset();
    const std::scoped_lock lock(mutex);
    return warnings;
  }

  io::Loop& loop;
  FlashOptions options;
  Random random;
  std::mutex mutex;
  std::string lines, warnings;
  std::unique_ptr<Logger> log;
  BufferPool pool;
  std::uint64_t sequence = 100;
  TestOwner owner;
  std::unique_ptr<FlashTier> tier;
  std::vector<Kept> found;
};

inline constexpr std::uint64_t kTestRegionBytes = 64u << 10;

inline FlashOptions TestOptions(std::size_t devices = 1, std::uint32_t unit = 512, std::uint32_t regions = 8,
                                std::uint64_t region_bytes = kTestRegionBytes) {
  FlashOptions options;
  options.unit = unit;
  options.region_bytes = region_bytes;
  for (std::size_t i = 0; i < devices; ++i) {
    options.devices.push_back({Text("/flash", i), kSuperBytes + regions * region_bytes});
  }
  return options;
}

// A simulated disk on which nodes live one after the other.
struct World {
  explicit World(std::uint64_t seed_in, FlashOptions options_in = TestOptions())
      : seed(seed_in), disk(seed_in), options(std::move(options_in)) {}
  ~World() {
    node.reset();
    loop.reset();
  }

  // A node starts; `journal` knows the devices of the last one that said so.
  Status Start() {
    node.reset();
    loop = std::move(*io::SimulatedLoop::Make(clock, disk, seed * 1000 + ++lives));
    node = std::make_unique<TierOn>(*loop, options, seed * 7919 + lives);
    node->sequence = sequence;
    Status status = node->Open(known);
    if (!status.ok()) return status;
    known = node->tier->media_ids();
    return node->Recover();
  }
  void Stop() {
    node->Close();
    Ended();
  }
  // kill -9 with the power; tasks of the test must have been dropped... by whoever holds them, after.
  void CutPower() { loop->Crash(); }
  void Ended() {
    if (node != nullptr) sequence = node->sequence;
    node.reset();
    loop.reset();
  }
  // Records 1 and up, one after the other: those that fill a region, and the first of the next one.
  std::vector<Kept> FillRegion(std::uint32_t body_bytes = 5'000) {
    std::vector<Kept> kept;
    for (std::uint64_t n = 1; kept.empty() || kept.back().region() == kept.front().region(); ++n)
      kept.push_back(node->Append({n}, {body_bytes})->front());
    return kept;
  }
  TierOn& operator*() { return *node; }
  TierOn* operator->() { return node.get(); }

  std::uint64_t seed;
  std::uint64_t lives = 0;
  std::uint64_t sequence = 100;
  SimulatedClock clock;
  io::SimulatedDisk disk;
  FlashOptions options;
  std::vector<std::uint64_t> known;
  std::unique_ptr<io::SimulatedLoop> loop;
  std::unique_ptr<TierOn> node;
};

}  // namespace cistern::flash
