// SPDX-License-Identifier: Apache-2.0
// What the kernels with VPCLMULQDQ share: four lines at a time are loaded, stored and folded into four lines
// of accumulators, in registers of the width that the file's instructions have. Folding hides behind the
// memory; what limits is how early the source's lines are asked for. Internal linkage and included by those
// files alone, as copy_by_words.h.
//
// `Wide` is a register (Register, Load, Store, Factors, Fold, Xor, First: see the kernels) and how early its
// kernel asks: Early.
#pragma once

#include <cstddef>
#include <cstdint>

#include "record/copy_by_words.h"
#include "record/crc32_x86.h"
#include "record/crc32c_fold.h"

namespace cistern::record {
namespace {

constexpr std::size_t kStep = 4 * kLine;

// Lines are asked for a fixed distance ahead of each step: 2 KiB are the best on Zen 3 and 4. That reaches
// behind the source's end, which a prefetch may; where a body is copied by segments those lines are the next
// one's first.
template <Into kInto>
class EachStep final {
 public:
  explicit EachStep(const Bytes* from) : ahead_(from + kAhead) {}
  [[gnu::always_inline]] void Ask(std::size_t at) const {
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kStep; i += kLine) AskFor<kInto>(ahead_ + at + i);
  }

 private:
  static constexpr std::size_t kAhead = 2048;
  const Bytes* const ahead_;
};

// The processor's own prefetcher runs along a page and stops at its end, so the first lines of the next page
// are asked for, four of them, which start it: the best on Zen 4 beside cached stores of whole lines. At a
// page's start they would compete with those that the copy waits for.
template <Into kInto>
class EachPage final {
 public:
  explicit EachPage(const Bytes* from)
      : from_(from), page_(-static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(from) % kPage)) {}
  [[gnu::always_inline]] void Ask(std::size_t at) {
    if (static_cast<std::ptrdiff_t>(at) < page_ + kAskAt) return;
    page_ += kPage;
    for (std::ptrdiff_t i = 0; i < kLines; ++i) AskFor<kInto>(from_ + page_ + i * kLine);
  }

 private:
  static constexpr std::ptrdiff_t kPage = 4096, kLines = 4, kAskAt = 1024;
  const Bytes* const from_;
  std::ptrdiff_t page_;  // where the page begins whose successor is asked for next, seen from the source
};

// The remainder of all that a register stands for, which is that of its own bytes.
template <class Wide>
[[gnu::always_inline]] inline std::uint32_t SumOfLast(typename Wide::Register sum) {
  alignas(kLine) Bytes last[sizeof(sum)];
  Wide::template Store<To::kCached>(last, sum);
  return ByWords<Crc32X86, To::kNowhere>(nullptr, last, sizeof(sum), 0);
}

// n is a multiple of a line and at least a step; `to` lies on a line.
template <class Wide, Into kInto, To kTo>
__attribute__((no_sanitize("thread"))) std::uint32_t ByFolds(Bytes* to, const Bytes* from, std::size_t n,
                                                             std::uint32_t crc) {
  using Register = typename Wide::Register;
  constexpr std::size_t kWidth = sizeof(Register), kAccumulators = kStep / kWidth;
  const Register by_step = Wide::Factors(FoldFirst(kStep), FoldSecond(kStep));
  const Register by_one = Wide::Factors(FoldFirst(kWidth), FoldSecond(kWidth));
  Register sums[kAccumulators];
#pragma GCC unroll 8
  for (std::size_t i = 0; i < kAccumulators; ++i) {
    sums[i] = Wide::Load(from + i * kWidth);
    Wide::template Store<kTo>(Ahead<kTo>(to, i * kWidth), sums[i]);
  }
  sums[0] = Wide::Xor(sums[0], Wide::First(crc));
  std::size_t at = kStep;
  typename Wide::template Early<kTo, kInto> early(from);
  for (; at + kStep <= n; at += kStep) {
    early.Ask(at);
#pragma GCC unroll 4
    for (std::size_t i = 0; i < kStep; i += kLine) AskForRoom<kInto, kTo>(Ahead<kTo>(to, at + i));
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kAccumulators; ++i) {
      const Register bytes = Wide::Load(from + at + i * kWidth);
      Wide::template Store<kTo>(Ahead<kTo>(to, at + i * kWidth), bytes);
      sums[i] = Wide::Fold(sums[i], by_step, bytes);
    }
  }
  Register sum = sums[0];
#pragma GCC unroll 8
  for (std::size_t i = 1; i < kAccumulators; ++i) sum = Wide::Fold(sum, by_one, sums[i]);
  for (; at < n; at += kWidth) {
    const Register bytes = Wide::Load(from + at);
    Wide::template Store<kTo>(Ahead<kTo>(to, at), bytes);
    sum = Wide::Fold(sum, by_one, bytes);
  }
  return SumOfLast<Wide>(sum);
}

// A way of copying.
template <class Wide, Into kInto>
struct Folds {
  template <To kTo>
  static std::uint32_t Run(void* dst, const void* src, std::size_t n, std::uint32_t crc, std::size_t) {
    return WithEdges<Crc32X86, kTo>(dst, src, n, crc, kLine, kStep, ByFolds<Wide, kInto, kTo>);
  }
};

}  // namespace
}  // namespace cistern::record
