// SPDX-License-Identifier: Apache-2.0
// The tier alone on a real directory: how fast it fills, is found again and is read.
//   tier_bench DIRECTORY RECORDS BODY_BYTES UNIT
// Prints one line a figure. It removes what it made.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "flash/test_flash_tier.h"

namespace {

using namespace cistern;
using namespace cistern::flash;

double Cpu() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

struct Timed {
  explicit Timed(const Clock& clock_in) : clock(clock_in), began(clock.Now()), cpu(Cpu()) {}
  double Seconds() const { return static_cast<double>(clock.Now().NsSince(began)) * 1e-9; }
  void Say(const char* what, double bytes, double count) const {
    const double s = Seconds();
    std::printf("%-28s %8.3f s  cpu %7.3f s  %8.2f GB/s  %10.0f a second\n", what, s, Cpu() - cpu,
                bytes / s * 1e-9, count / s);
  }
  const Clock& clock;
  Instant began;
  double cpu;
};

struct Bench {
  io::Loop& loop;
  FlashTier& tier;
  Executor& executor() const { return loop.executor(); }
  BufferPool pool;
  std::vector<Kept> kept;
  std::uint64_t sequence = 1;
  std::uint64_t next = 0;
  std::vector<std::int64_t> took_us;
  std::vector<double> errors;

  Task<void> Fill(std::uint64_t records, std::uint32_t body_bytes, std::size_t batch) {
    std::vector<std::uint32_t> parts(1, body_bytes);
    Block block(pool, 1, parts);
    std::vector<tier::AppendRequest> out;
    while (next < records) {
      out.clear();
      for (std::size_t i = 0; i < batch && next < records; ++i) {
        out.push_back(block.Out(sequence++));
        out.back().seal.key = KeyOf(next++);
      }
      auto locations = co_await tier.Append(out);
      if (!locations) {
        std::printf("append: %s\n", locations.error().ToString().c_str());
        co_return;
      }
      for (const tier::Location& at : *locations) kept.push_back({0, 0, at, block.record_bytes(unit)});
    }
  }
  Task<void> Read(std::uint64_t reads, std::uint64_t seed) {
    Random random(seed);
    Buffer buffer = pool.Take(kept[0].bytes);
    for (std::uint64_t i = 0; i < reads; ++i) {
      const Kept& each = kept[random.Below(kept.size())];
      const Instant began = loop.clock().Now();
      const std::int64_t said = tier.EstimateUs(each.location, each.bytes);
      auto fetched = co_await tier.Fetch(each.location, buffer.bytes().first(each.bytes), nullptr);
      if (!fetched) std::printf("fetch: %s\n", fetched.error().ToString().c_str());
      const std::int64_t us = std::max<std::int64_t>(1, loop.clock().Now().UsSince(began));
      took_us.push_back(us);
      errors.push_back(std::abs(static_cast<double>(said - us)) / static_cast<double>(us));
    }
  }
  Task<void> Found(std::span<const tier::TierEntry> entries) {
    for (const tier::TierEntry& entry : entries) tier.Adopt(entry.location, entry.record_bytes);
    found += entries.size();
    co_return;
  }
  std::uint32_t unit = 4096;
  std::uint64_t found = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: tier_bench DIRECTORY RECORDS BODY_BYTES UNIT\n");
    return 2;
  }
  const std::uint64_t records = std::strtoull(argv[2], nullptr, 10);
  const auto body = static_cast<std::uint32_t>(std::strtoull(argv[3], nullptr, 10));
  const auto unit = static_cast<std::uint32_t>(std::strtoull(argv[4], nullptr, 10));
  FlashOptions options;
  options.unit = unit;
  options.region_bytes = 256u << 20;
  const std::uint64_t bytes = records * record::RecordBytes(body, unit);
  options.devices.push_back({argv[1], bytes + bytes / 16 + (2ull << 30)});
  SystemClock clock;
  const double total = static_cast<double>(bytes);
  const std::size_t batch = std::clamp<std::size_t>((4u << 20) / body, 1, tier::kMaxBatchRecords);
  std::vector<std::uint64_t> known;
  std::vector<Kept> kept;
  for (int life = 0; life < 2; ++life) {
    auto loop = std::move(*io::MakeLoop(clock));
    TierOn node(*loop, options, 1);
    const Timed opening(clock);
    const Status opened = node.Open(known);
    if (!opened.ok()) {
      std::printf("%s\n", opened.ToString().c_str());
      return 1;
    }
    known = node.tier->media_ids();
    Bench bench{*loop, *node.tier};
    bench.unit = unit;
    bench.kept = std::move(kept);
    if (!loop->BlockOn(node.tier->Recover([&](std::span<const tier::TierEntry> e) { return bench.Found(e); }))
             .ok())
      return 1;
    if (life == 1) opening.Say("open and recover", 0, static_cast<double>(bench.found));
    const auto fill = [&](const char* what) {
      const Timed timed(clock);
      TaskGroup group(loop->executor());
      for (int i = 0; i < 4; ++i) group.Spawn(bench.Fill(records, body, batch));
      loop->BlockOn(group.Close());
      timed.Say(what, total, static_cast<double>(records));
    };
    if (life == 0) fill("append");
    for (const std::uint32_t depth : {1u, 8u, 32u}) {
      const std::uint64_t reads = std::min<std::uint64_t>(20'000, (4ull << 30) / bench.kept[0].bytes) / depth;
      bench.took_us.clear();
      bench.errors.clear();
      const Timed timed(clock);
      TaskGroup group(loop->executor());
      for (std::uint32_t i = 0; i < depth; ++i) group.Spawn(bench.Read(reads, i));
      loop->BlockOn(group.Close());
      const double count = static_cast<double>(reads * depth);
      timed.Say(Text("fetch at depth ", depth).c_str(), count * static_cast<double>(bench.kept[0].bytes),
                count);
      std::ranges::sort(bench.took_us);
      std::ranges::sort(bench.errors);
      std::printf("%-28s p50 %lld us, p99 %lld us, median error of the estimate %.1f %%\n", "",
                  static_cast<long long>(bench.took_us[bench.took_us.size() / 2]),
                  static_cast<long long>(bench.took_us[bench.took_us.size() * 99 / 100]),
                  100 * bench.errors[bench.errors.size() / 2]);
    }
    kept = std::move(bench.kept);
    node.Close();
  }
  ::unlink((std::string(argv[1]) + "/flash").c_str());
}
