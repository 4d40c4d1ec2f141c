// SPDX-License-Identifier: Apache-2.0
// The faults of a storm and the book that is kept on them. A fault is injected when it was done, and seen
// when it hit an operation in flight or a record that was read later: only those count. What was seen in a
// run in which the model found nothing wrong was tolerated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace cistern::storm {

enum class Fault : std::uint8_t {
  kCrash,         // the node dies between any two words and the disk with it: memory is kept
  kClientDies,    // a session ends with calls in flight, leases, staging in use
  kClientStalls,  // it stops in the middle of a read or with a lease until long past every deadline
  kClientLies,    // garbage touches, wrong checksums, staging changed under the copy, foreign tokens and
                  // parents
  kFlipBody,
  kFlipSeal,  // seal or stamp
  kFlipDirectory,
  kFlipIndex,  // a bit, or an entry torn from two
  kLostTouches,
  kLeaseExpires,  // a lease that was never released
  kClockBack,     // wall time steps back under blocks that expire
  kMemoryFull,    // a put is refused for want of room
  kRevive,        // a dropped key is put again under its living descendants
  kJournal,       // torn tail, lost unsynced writes, EIO, damage to one of its files
  kRecarve,       // memory changes slot size under readers and writers
  kResize,        // memory itself becomes smaller or larger under them
  // From here on in worlds with a lower tier.
  kKill,       // SIGKILL of the node: the disk goes on, and what was on its way to and from it may land later
  kReboot,     // memory is gone, and of the disk what was not durable
  kTorn,       // power lost under writes to the tier: torn, out of order, lost
  kReadError,  // EIO
  kWriteError,  // EIO of a write or a flush
  kShortIo,
  kHang,
  kLostFlush,  // a flush that did nothing, and a power cut after it
  kFlipMedia,  // of a record, a table, a header, the superblock; or the end of a write never came to them
  kFlipRead,   // on the way; the medium is right
  kNoSpace,    // or no budget
  kTakeOut,    // a device taken out by hand
  kElsewhere,  // a read gives what lies at another place
};
inline constexpr std::size_t kMemoryFaultKinds = 16;
inline constexpr std::size_t kFaultKinds = 29;

std::string_view FaultName(Fault kind);

// What stands below memory.
enum class TierKind : std::uint8_t { kMemory, kFlash, kSimulated };
inline constexpr std::size_t kTierKinds = 3;

// Whether a world with such a tier can suffer it.
bool Suffers(TierKind tier, Fault kind);

class Faults {
 public:
  struct Count {
    std::uint64_t injected = 0, seen = 0;
  };

  void Injected(Fault kind, std::uint64_t n = 1) { counts_[Index(kind)].injected += n; }
  void Seen(Fault kind, std::uint64_t n = 1) {
    counts_[Index(kind)].seen += n;
    total_ += n;
  }
  const Count& operator[](Fault kind) const { return counts_[Index(kind)]; }
  std::uint64_t total() const { return total_; }

  // With kinds that only a lower tier can suffer, which then come more often than the others; flips of media
  // where these rot.
  void set_tier(TierKind tier, bool rots) {
    tier_ = tier;
    rots_ = rots;
  }
  // Whether this kind is due: kinds that are behind the others come more often, so that each gets its share.
  bool Wants(Fault kind) const;
  bool rots() const { return rots_; }
  void Add(const Faults& other);

 private:
  static std::size_t Index(Fault kind) { return static_cast<std::size_t>(kind); }
  std::array<Count, kFaultKinds> counts_{};
  std::uint64_t total_ = 0;
  TierKind tier_ = TierKind::kMemory;
  bool rots_ = false;
};

// Bits that were changed in shared memory and have not been overwritten since.
class Damage {
 public:
  explicit Damage(Faults& faults) : faults_(faults) {}

  void FlipBit(Fault kind, std::byte* at, unsigned bit);
  void Overwrite(Fault kind, std::uint64_t* word, std::uint64_t value);
  // Some actor read these bytes.
  void Loaded(const void* from, std::size_t bytes);
  // Whether any of these bytes are damaged now.
  bool Standing(const void* from, std::size_t bytes);
  bool Standing(Fault kind);
  // The memory is as new.
  void Clear() {
    marks_.clear();
    filter_ = {};
  }

 private:
  struct Mark {
    Fault kind;
    bool seen;
    std::byte* at;
    std::uint32_t bytes;
    std::uint64_t value;
  };
  static constexpr std::size_t kFilterBits = 4096;

  static std::size_t Bit(const void* at) { return reinterpret_cast<std::uintptr_t>(at) / 64 % kFilterBits; }
  void Remember(Fault kind, std::byte* at, std::uint32_t bytes);
  bool Stands(const Mark& mark) const;
  void Forget();

  Faults& faults_;
  std::vector<Mark> marks_;
  std::array<std::uint64_t, kFilterBits / 64> filter_{};
};

}  // namespace cistern::storm
