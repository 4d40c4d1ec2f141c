// SPDX-License-Identifier: Apache-2.0
// verified_copy_bench: every kernel against libc's memcpy. All copy the same blocks of a working set larger
// than the last-level cache, in the same random order, to the same destination; they take turns within a
// round, so that what else the machine does hits all alike. A ratio is a kernel's GB/s over memcpy's of its
// round.
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "record/seal.h"
#include "record/verified_copy.h"

namespace cistern::record {
namespace {

constexpr std::size_t kGap = 4096;  // between blocks, as records have their trailers there

struct Way {
  std::string name;
  std::function<void(void*, const void*, std::size_t)> copy;
};

// Through a volatile pointer: no compiler puts its own copy in the place of libc's.
void* (*volatile libc_memcpy)(void*, const void*, std::size_t) = &std::memcpy;
volatile std::uint64_t sink;

std::vector<Way> Ways() {
  std::vector<Way> ways;
  ways.push_back({"memcpy", [](void* to, const void* from, std::size_t n) { libc_memcpy(to, from, n); }});
  for (const CopyKernels* kernels : AllKernels()) {
    const std::string name = kernels->name;
    // A segment a call, as records are read.
    auto by_segment = [](auto copy) {
      return [copy](void* to, const void* from, std::size_t n) {
        for (std::size_t at = 0; at < n; at += kSegmentBytes) {
          sink = copy(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                      std::min<std::size_t>(n - at, kSegmentBytes), 0);
        }
        StoreFence();
      };
    };
    ways.push_back({name + " stream", by_segment(kernels->copy_stream)});
    ways.push_back({name + " cached", by_segment(kernels->copy_cached)});
    ways.push_back({name + " plain", [kernels](void* to, const void* from, std::size_t n) {
                      kernels->copy_plain_stream(to, from, n);
                      StoreFence();
                    }});
    ways.push_back({name + " crc",
                    [kernels](void*, const void* from, std::size_t n) { sink = kernels->crc(from, n, 0); }});
  }
  return ways;
}

std::byte* Map(std::size_t bytes, int flags) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) {
    std::fprintf(stderr, "verified_copy_bench: no room for %zu MiB\n", bytes >> 20);
    std::exit(1);
  }
  std::memset(at, 1, bytes);
  return static_cast<std::byte*>(at);
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

void Compare(const std::byte* source, std::size_t source_bytes, std::size_t block_bytes,
             std::size_t destination_bytes, bool read, int rounds) {
  using Clock = std::chrono::steady_clock;
  const std::vector<Way> ways = Ways();
  std::byte* const destination = Map(destination_bytes, MAP_PRIVATE);
  std::vector<std::size_t> order(source_bytes / (block_bytes + kGap));
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  const std::size_t a_turn = std::max<std::size_t>(1, (32u << 20) / block_bytes);
  std::vector<std::vector<double>> rates(ways.size()), ratios(ways.size());
  std::size_t next = 0, used = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<double> rate(ways.size());
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::size_t way = (i + static_cast<std::size_t>(round)) % ways.size();
      const Clock::time_point begin = Clock::now();
      for (std::size_t n = 0; n < a_turn; ++n) {
        std::byte* const to = destination + used;
        ways[way].copy(to, source + order[next] * (block_bytes + kGap), block_bytes);
        if (read) sink = BestKernels().crc(to, block_bytes, 0);
        next = (next + 1) % order.size();
        used = used + 2 * block_bytes <= destination_bytes ? used + block_bytes : 0;
      }
      const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
      rate[way] = static_cast<double>(a_turn * block_bytes) / took.count();
    }
    for (std::size_t i = 0; i < ways.size(); ++i) {
      rates[i].push_back(rate[i]);
      ratios[i].push_back(rate[i] / rate[0]);
    }
  }
  std::printf("\n%zu KiB blocks, destination %s%s\n", block_bytes >> 10,
              destination_bytes == block_bytes ? "one block, reused" : "512 MiB in turn",
              read ? ", the caller reads the result" : "");
  std::printf("  %-18s %8s %17s %8s %8s\n", "", "GB/s", "p10..p90", "ratio", "p25");
  for (std::size_t i = 0; i < ways.size(); ++i) {
    std::printf("  %-18s %8.2f %8.2f..%-7.2f %8.3f %8.3f\n", ways[i].name.c_str(), Percentile(rates[i], 0.5),
                Percentile(rates[i], 0.1), Percentile(rates[i], 0.9), Percentile(ratios[i], 0.5),
                Percentile(ratios[i], 0.25));
  }
  munmap(destination, destination_bytes);
}

int Main(int argc, char** argv) {
  int rounds = 15;
  const std::string_view argument = argc > 1 ? argv[1] : "";
  const auto read = std::from_chars(argument.data(), argument.data() + argument.size(), rounds);
  if (argc > 2 || (argc == 2 && (read.ec != std::errc() || read.ptr != argument.data() + argument.size() ||
                                 rounds < 1 || rounds > 100'000))) {
    std::fprintf(stderr,
                 "verified_copy_bench [ROUNDS]: kernels against memcpy. Example: verified_copy_bench 31\n");
    return 2;
  }
  constexpr std::size_t kSourceBytes = 1u << 30;
  const std::byte* const source = Map(kSourceBytes, MAP_SHARED);
  for (const std::size_t block_bytes : {std::size_t{64} << 10, std::size_t{2} << 20}) {
    for (const std::size_t destination_bytes : {block_bytes, std::size_t{512} << 20}) {
      for (const bool caller_reads : {false, true}) {
        Compare(source, kSourceBytes, block_bytes, destination_bytes, caller_reads, rounds);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace cistern::record

int main(int argc, char** argv) { return cistern::record::Main(argc, argv); }
