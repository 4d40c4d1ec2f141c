// SPDX-License-Identifier: Apache-2.0
#include "faults.h"

#include <algorithm>
#include <cstring>

namespace cistern::storm {

std::string_view FaultName(Fault kind) {
  static constexpr std::array<std::string_view, kFaultKinds> kNames = {
      "crash",          "client-dies", "client-stalls", "client-lies",   "flip-body",  "flip-seal",
      "flip-directory", "flip-index",  "lost-touches",  "lease-expires", "clock-back", "memory-full",
      "revive",         "journal",     "recarve",       "resize",        "kill",       "reboot",
      "torn",           "read-error",  "write-error",   "short-io",      "hang",       "lost-flush",
      "flip-media",     "flip-read",   "no-space",      "take-out",      "elsewhere"};
  return kNames[static_cast<std::size_t>(kind)];
}

bool Suffers(TierKind tier, Fault kind) {
  if (static_cast<std::size_t>(kind) < kMemoryFaultKinds) return true;
  if (tier != TierKind::kSimulated) return tier == TierKind::kFlash;
  return kind != Fault::kShortIo && kind != Fault::kHang && kind != Fault::kLostFlush;
}

bool Faults::Wants(Fault kind) const {
  if (!Suffers(tier_, kind)) return false;
  // Up to its share and a little more, so that a kind that comes by itself less often has time to catch up.
  // Not every world has leases that stand for long, or a memory of several chunks.
  const bool rare = kind == Fault::kLeaseExpires || kind == Fault::kResize;
  if (tier_ == TierKind::kMemory)
    return counts_[Index(kind)].seen <= 1 + total_ / (rare ? 12 : kMemoryFaultKinds);
  if (tier_ == TierKind::kSimulated)
    return counts_[Index(kind)].seen <= 1 + total_ / (Index(kind) < kMemoryFaultKinds ? 36 : 15);
  // Not every world has reads that another place could answer, or power cuts behind flushes.
  if (kind == Fault::kElsewhere) return counts_[Index(kind)].seen <= 1 + total_ / 9;
  if (kind == Fault::kLostFlush) return counts_[Index(kind)].seen <= 1 + total_ / 14;
  if (kind == Fault::kFlipMedia) return rots_ && counts_[Index(kind)].seen <= 1 + total_ / 9;
  return counts_[Index(kind)].seen <= 1 + total_ / (Index(kind) < kMemoryFaultKinds ? 90 : 16);
}

void Faults::Add(const Faults& other) {
  for (std::size_t i = 0; i < kFaultKinds; ++i) {
    counts_[i].injected += other.counts_[i].injected;
    counts_[i].seen += other.counts_[i].seen;
  }
  total_ += other.total_;
}

void Damage::Remember(Fault kind, std::byte* at, std::uint32_t bytes) {
  faults_.Injected(kind);
  Mark mark{kind, false, at, bytes, 0};
  std::memcpy(&mark.value, at, bytes);
  Forget();
  marks_.push_back(mark);
  std::size_t bit = Bit(at);
  filter_[bit / 64] |= std::uint64_t{1} << bit % 64;
}

void Damage::FlipBit(Fault kind, std::byte* at, unsigned bit) {
  *at ^= std::byte{1} << bit;
  Remember(kind, at, 1);
}

void Damage::Overwrite(Fault kind, std::uint64_t* word, std::uint64_t value) {
  *word = value;
  Remember(kind, reinterpret_cast<std::byte*>(word), 8);
}

bool Damage::Stands(const Mark& mark) const { return std::memcmp(mark.at, &mark.value, mark.bytes) == 0; }

void Damage::Forget() {
  if (marks_.size() < 64) return;
  std::erase_if(marks_, [this](const Mark& mark) { return !Stands(mark); });
  filter_ = {};
  for (const Mark& mark : marks_) filter_[Bit(mark.at) / 64] |= std::uint64_t{1} << Bit(mark.at) % 64;
}

void Damage::Loaded(const void* from, std::size_t bytes) {
  if (marks_.empty()) return;
  auto* first = static_cast<const std::byte*>(from);
  bool maybe = bytes > 1024;
  for (std::size_t at = 0; at < bytes + 63 && !maybe; at += 64) {
    std::size_t bit = Bit(first + at);
    maybe = (filter_[bit / 64] >> bit % 64 & 1) != 0;
  }
  if (!maybe) return;
  for (Mark& mark : marks_) {
    if (mark.seen || mark.at >= first + bytes || mark.at + mark.bytes <= first || !Stands(mark)) continue;
    mark.seen = true;
    faults_.Seen(mark.kind);
  }
}

bool Damage::Standing(const void* from, std::size_t bytes) {
  auto* first = static_cast<const std::byte*>(from);
  return std::ranges::any_of(marks_, [&](const Mark& mark) {
    return mark.at < first + bytes && mark.at + mark.bytes > first && Stands(mark);
  });
}

bool Damage::Standing(Fault kind) {
  return std::ranges::any_of(marks_, [&](const Mark& mark) { return mark.kind == kind && Stands(mark); });
}

}  // namespace cistern::storm
