// SPDX-License-Identifier: Apache-2.0
#include "record/verified_copy.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/fence.h"

namespace cistern::record {
namespace {

// The definition, a bit at a time: what every kernel is held against.
std::uint32_t BitwiseCrc(const unsigned char* data, std::size_t n, std::uint32_t crc) {
  crc = ~crc;
  for (std::size_t i = 0; i < n; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::vector<unsigned char> RandomBytes(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<unsigned char> bytes(n);
  for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

class EveryKernel : public testing::TestWithParam<std::pair<std::string, const CopyKernels*>> {
 protected:
  const CopyKernels& kernels() const { return *GetParam().second; }

  // Copies and sums n bytes from one offset to another every way there is; nothing outside may change.
  void Check(const std::vector<unsigned char>& source, std::size_t from, std::size_t to, std::size_t n,
             std::uint32_t crc, std::uint32_t want) {
    constexpr unsigned char kUntouched = 0xa5;
    const std::string what = GetParam().first + ": " + std::to_string(n) + " bytes from +" +
                             std::to_string(from) + " to +" + std::to_string(to);
    EXPECT_EQ(kernels().crc(source.data() + from, n, crc), want) << what;
    for (const auto way : {&CopyKernels::copy_stream, &CopyKernels::copy_cached, &CopyKernels::copy_again}) {
      std::vector<unsigned char> out(to + n + 128, kUntouched);
      EXPECT_EQ((kernels().*way)(out.data() + to, source.data() + from, n, crc, n % 3), want) << what;
      StreamingStoreFence();
      ASSERT_EQ(std::memcmp(out.data() + to, source.data() + from, n), 0) << what;
      for (std::size_t i = 0; i < out.size(); ++i) {
        if (i >= to && i < to + n) continue;
        ASSERT_EQ(out[i], kUntouched) << what << ", byte " << i;
      }
    }
  }
};

TEST_P(EveryKernel, GivesTheStandardsCheckValues) {
  EXPECT_EQ(kernels().crc("123456789", 9, 0), 0xe3069283u);
  EXPECT_EQ(kernels().crc(nullptr, 0, 0), 0u);
  EXPECT_EQ(kernels().copy_stream(nullptr, nullptr, 0, 77, 0), 77u);
  std::array<unsigned char, 32> zeros{};
  EXPECT_EQ(kernels().crc(zeros.data(), zeros.size(), 0), 0x8a9136aau);
}

TEST_P(EveryKernel, AgreesWithTheDefinitionAtEveryLengthTo4200) {
  const auto source = RandomBytes(4200 + 64, 1);
  for (std::size_t n = 0; n <= 4200; ++n) {
    const std::size_t from = n * 7 % 64, to = n * 13 % 64;
    const auto crc = static_cast<std::uint32_t>(n * 2654435761u);
    Check(source, from, to, n, crc, BitwiseCrc(source.data() + from, n, crc));
  }
}

TEST_P(EveryKernel, AgreesWithTheDefinitionAtAnyAlignment) {
  const auto source = RandomBytes(8192 + 64, 2);
  for (std::size_t from = 0; from < 64; ++from) {
    for (std::size_t to = 0; to < 64; to += 1 + from % 7) {
      const std::size_t n = 1000 + (from * 64 + to) * 5 % 5000;
      Check(source, from, to, n, 0, BitwiseCrc(source.data() + from, n, 0));
    }
  }
}

TEST_P(EveryKernel, AgreesWithTheDefinitionUpTo300KiB) {
  const auto source = RandomBytes(300 * 1024 + 8192, 3);
  std::mt19937_64 random(4);
  for (int i = 0; i < 60; ++i) {
    const std::size_t n = i == 0 ? 64 * 1024 : random() % (300 * 1024 + 1);
    const std::size_t from = i == 0 ? 0 : random() % 8192, to = random() % 8192;
    const auto crc = static_cast<std::uint32_t>(random());
    Check(source, from, to, n, crc, BitwiseCrc(source.data() + from, n, crc));
  }
}

// Whole segments to whole lines: what blocks are made of, which kernels may copy in a way of its own.
TEST_P(EveryKernel, FindsDamageOfEachLineOfASegment) {
  constexpr std::size_t kBytes = 64 * 1024;
  auto source = RandomBytes(kBytes, 10);
  struct alignas(64) Line {
    unsigned char bytes[64];
  };
  std::vector<Line> out(kBytes / 64);
  for (std::size_t at = 0; at < kBytes; at += 61) {
    source[at] ^= 0x10;
    const std::uint32_t want = kPortableKernels.crc(source.data(), kBytes, 9);
    for (const auto way : {&CopyKernels::copy_stream, &CopyKernels::copy_cached, &CopyKernels::copy_again}) {
      for (const std::size_t behind : {std::size_t{0}, std::size_t{4096}, kBytes}) {
        ASSERT_EQ((kernels().*way)(out.data(), source.data(), kBytes, 9, behind), want) << "byte " << at;
      }
    }
    StreamingStoreFence();
    ASSERT_EQ(std::memcmp(out.data(), source.data(), kBytes), 0) << "byte " << at;
  }
}

TEST_P(EveryKernel, ContinuesWhereTheLastCallEnded) {
  const auto source = RandomBytes(70'000, 5);
  std::vector<unsigned char> out(source.size());
  const std::uint32_t want = BitwiseCrc(source.data(), source.size(), 0);
  std::mt19937_64 random(6);
  for (int i = 0; i < 50; ++i) {
    const std::size_t cut = random() % source.size();
    const std::uint32_t first = kernels().copy_stream(out.data(), source.data(), cut, 0, source.size() - cut);
    EXPECT_EQ(kernels().crc(source.data() + cut, source.size() - cut, first), want);
    EXPECT_EQ(kernels().copy_cached(out.data() + cut, source.data() + cut, source.size() - cut, first, 0),
              want);
  }
}

// A byte for each place that a kernel treats in its own way: head, each lane of a step or tile, tail.
TEST_P(EveryKernel, FindsDamageOfEachByte) {
  const std::size_t n = 4096 + 63, from = 3, to = 5;
  auto source = RandomBytes(from + n, 9);
  std::vector<unsigned char> out(to + n);
  const std::uint32_t want = BitwiseCrc(source.data() + from, n, 0);
  for (std::size_t at = 0; at < n; ++at) {
    source[from + at] ^= 0x40;
    const std::uint32_t damaged = kPortableKernels.crc(source.data() + from, n, 0);
    ASSERT_NE(damaged, want);
    ASSERT_EQ(kernels().copy_stream(out.data() + to, source.data() + from, n, 0, 0), damaged)
        << "byte " << at;
    ASSERT_EQ(kernels().copy_cached(out.data() + to, source.data() + from, n, 0, 0), damaged)
        << "byte " << at;
    ASSERT_EQ(kernels().crc(source.data() + from, n, 0), damaged) << "byte " << at;
    source[from + at] ^= 0x40;
  }
}

// R1: what was summed is what was delivered, so each byte is loaded once.
TEST_P(EveryKernel, R1SumsWhatItDeliveredThoughTheSourceChangesMeanwhile) {
  constexpr std::size_t kBytes = 64 * 1024;
  alignas(8) static std::array<unsigned char, kBytes + 16> source;
  std::vector<unsigned char> out(kBytes + 64);
  const std::size_t first_line = (0 - reinterpret_cast<std::uintptr_t>(out.data())) % 64;
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> rounds{0};
  std::thread writer([&] {
    for (std::uint64_t value = 1; !stop.load(); ++value) {
      for (std::size_t at = 0; at < source.size(); at += 8) {
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(&source[at]))
            .store(value * 0x9e3779b97f4a7c15u, std::memory_order_relaxed);
      }
      rounds.store(value);
    }
  });
  std::uint64_t first_round = 0;
  while (first_round == 0) first_round = rounds.load();
  for (int i = 0; i < 2000 || rounds.load() == first_round; ++i) {
    // Half of them to a whole line: kernels may copy those in a way of their own.
    const std::size_t from = static_cast<std::size_t>(i) % 16,
                      to = i % 4 < 2 ? first_line : static_cast<std::size_t>(i) % 61;
    const auto copy = i % 2 == 0 ? kernels().copy_stream : kernels().copy_cached;
    const std::uint32_t crc = copy(out.data() + to, source.data() + from, kBytes, 0, 0);
    StreamingStoreFence();
    if (kPortableKernels.crc(out.data() + to, kBytes, 0) == crc) continue;
    ADD_FAILURE() << "copy " << i;
    break;
  }
  stop.store(true);
  writer.join();
}

// Promise 1, "a hit is bit-exact or it is a miss", rests on this.
TEST_P(EveryKernel, FindsAnyFlippedBit) {
  auto source = RandomBytes(64 * 1024, 7);
  std::vector<unsigned char> out(source.size());
  const std::uint32_t want = kernels().crc(source.data(), source.size(), 0);
  std::mt19937_64 random(8);
  for (int i = 0; i < 2000; ++i) {
    const std::size_t bit = random() % (8 * source.size());
    source[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    ASSERT_NE(kernels().copy_stream(out.data(), source.data(), source.size(), 0, 0), want) << "bit " << bit;
    source[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
  }
}

// Those of the other maker's processors too, as far as this one has their instructions.
std::vector<std::pair<std::string, const CopyKernels*>> EachTable() {
  std::vector<std::pair<std::string, const CopyKernels*>> tables;
  const CpuFeatures cpu = ProbeCpu();
  const auto add = [&](bool runs, const CopyKernels& kernels, const char* maker) {
    if (runs) tables.emplace_back(std::string(kernels.name) + maker, &kernels);
  };
  if constexpr (kIsX86) {
    add(cpu.avx512, kAvx512LanesKernels, "");
    add(cpu.avx512, kIntelAvx512LanesKernels, "_intel");
    add(cpu.avx512, kAvx512Kernels, "");
    add(cpu.avx512, kIntelAvx512Kernels, "_intel");
    add(cpu.vpclmulqdq, kVpclmulqdqKernels, "");
    add(cpu.vpclmulqdq, kIntelVpclmulqdqKernels, "_intel");
    add(cpu.avx2, kAvx2Kernels, "");
    add(cpu.avx2, kIntelAvx2Kernels, "_intel");
  }
  if constexpr (kIsArm64) add(cpu.arm64, kArm64Kernels, "");
  add(true, kPortableKernels, "");
  return tables;
}

INSTANTIATE_TEST_SUITE_P(VerifiedCopy, EveryKernel, testing::ValuesIn(EachTable()),
                         [](const auto& table) { return table.param.first; });

TEST(VerifiedCopy, PortableKernelsAreAlwaysThere) {
  EXPECT_STREQ(AllKernels().back()->name, "portable");
  EXPECT_EQ(&ChosenKernels(), AllKernels().front());
}

TEST(VerifiedCopy, EachKernelCanBeChosenByItsNameAndAnotherNameIsRefused) {
  for (const CopyKernels* kernels : AllKernels()) {
    EXPECT_TRUE(ChooseKernels(kernels->name).ok());
    EXPECT_EQ(&ChosenKernels(), kernels);
  }
  const Status status = ChooseKernels("portible");
  EXPECT_EQ(status.code(), Code::kInvalid);
  EXPECT_NE(status.message().find("did you mean portable?"), std::string::npos) << status.message();
  EXPECT_STREQ(ChosenKernels().name, "portable");
  EXPECT_TRUE(ChooseKernels(AllKernels().front()->name).ok());
}

}  // namespace
}  // namespace cistern::record
