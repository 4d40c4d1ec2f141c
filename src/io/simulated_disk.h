// SPDX-License-Identifier: Apache-2.0
// Files in memory that outlive simulated loops as a disk outlives processes, and lie as disks do: errors,
// short transfers, delays, and at a crash whatever was not synced is kept, lost, or torn: a beginning of it
// is kept, or some of its 512-byte sectors. Names are as treacherous as bytes: creations, renames and
// removals are durable only once their directory was synced. Everything random comes from the seed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "cistern/status.h"
#include "io/files.h"
#include "io/loop.h"

namespace cistern::io {

enum class FaultKind : std::uint8_t {
  kNone,
  kIoError,
  kShort,
  kDelay,
  kLostFlush,  // a sync says that all is well and makes nothing durable; a later one may
  kHang,       // it does not end before Unhang, or a crash or kill of its loop
  kFlip,       // a read gives one bit wrong, once: the medium is right
  kNoSpace,    // a write or sync is ENOSPC
  kElsewhere,  // a read gives what lies at another place
  kLostTail,   // a write says that all is well, and only a beginning of it reached the medium
};
inline constexpr std::size_t kFaultKinds = 10;

struct Fault {
  FaultKind kind = FaultKind::kNone;
  // kShort: bytes that move; kDelay: microseconds on top; kFlip: which bit, modulo those that were read;
  // kElsewhere: the offset that is read; kLostTail: bytes that reached it
  std::uint64_t value = 0;
};

// When an operation that is submitted now ends, at the earliest now.
using TimeHook =
    std::move_only_function<Instant(const IoRequest& request, const std::string& path, Instant now)>;

// Asked once for each operation when it is submitted. A kind that its operation cannot suffer is none.
using FaultHook = std::move_only_function<Fault(const IoRequest& request, const std::string& path)>;

class SimulatedDisk {
 public:
  explicit SimulatedDisk(std::uint64_t seed) : random_(seed) {}
  SimulatedDisk(const SimulatedDisk&) = delete;
  SimulatedDisk& operator=(const SimulatedDisk&) = delete;

  // Empty for none.
  void set_faults(FaultHook hook) { faults_ = std::move(hook); }
  // Empty for 5 to 200 us, by the loop's seed. What a fault delays comes on top.
  void set_time(TimeHook hook) { time_ = std::move(hook); }
  // How many faults of a kind were injected.
  std::uint64_t injected(FaultKind kind) const { return injected_[static_cast<std::size_t>(kind)]; }

  // What hangs on the file of this path, as the hook was told it, goes on.
  void Unhang(const std::string& path) { ++unhangs_[path]; }

  // What a power failure leaves: the durable, and of the rest what chance keeps. SimulatedLoop::Crash calls
  // it; files still open go on being what they were and no longer reach the disk.
  void Crash();

  bool Exists(const std::string& path) const { return names_.contains(path); }
  // A file's bytes as a reader would see them; empty when there is none. Valid until the next operation on
  // it.
  std::span<const std::byte> Bytes(const std::string& path) const;
  // What of a file a power failure could not take; empty when its name is not durable.
  std::span<const std::byte> Durable(const std::string& path) const;
  // What the last Crash took at least a part of though its writer could not know that it might: the disk had
  // lied about a sync of it, or a sync of it had failed, perhaps unseen.
  struct Lost {
    std::string path;
    std::uint64_t offset;
    std::uint64_t size;
  };
  const std::vector<Lost>& lost() const { return lost_; }
  // Somebody copied an earlier file back, while nobody has it open: durable as it is. It must exist.
  void Replace(const std::string& path, std::span<const std::byte> bytes);
  // Somebody put a copy of another disk's files in place of this one's, while nobody has one of them open:
  // as a reader sees them there, and durable.
  void BecomeCopyOf(const SimulatedDisk& other);
  // Bit rot: flips the bits of `mask` in one byte, for good. The byte must exist.
  void Flip(const std::string& path, std::uint64_t offset, std::byte mask);

 private:
  friend class SimulatedLoop;
  friend class LateIo;

  struct Unsynced {
    std::uint64_t offset;
    std::vector<std::byte> bytes;
    bool doubtful;          // a sync of it failed, and no later one makes it durable
    bool believed = false;  // the disk said that it is durable, and lied
  };
  struct Inode {
    std::string path;  // where it was made, for the fault hook
    std::vector<std::byte> bytes;
    std::vector<std::byte> durable;
    std::vector<Unsynced> unsynced;
    std::uint64_t synced_writes = 0;  // writes that left `unsynced`
    std::weak_ptr<int> lock;          // whoever holds it owns the object
    bool directory = false;
  };
  using InodePtr = std::shared_ptr<Inode>;
  struct NameChange {
    std::string path;
    InodePtr inode;  // null: removed
  };

  Result<InodePtr> Open(const std::string& path, OpenMode mode);
  Status Rename(const std::string& from, const std::string& to);
  Status Remove(const std::string& path);
  bool IsNamed(const Inode& inode) const;
  Fault AskFault(const IoRequest& request, const Inode& inode);

  // Does it, with its fault: bytes moved or a negative errno. `writes` as for Sync.
  std::int64_t Carry(Inode& inode, const IoRequest& request, const Fault& fault, std::uint64_t writes);
  std::int64_t Read(const Inode& inode, const IoRequest& request, std::uint64_t size) const;
  std::int64_t Write(Inode& inode, const IoRequest& request, std::uint64_t size);
  // Of the writes so far, the first `writes` of the inode's life are durable, or after a failure doubtful.
  void Sync(Inode& inode, std::uint64_t writes, bool failed);
  // Of a sync that did nothing and says that it did.
  static void PretendSync(Inode& inode, std::uint64_t writes);
  // Unsynced writes that a sync of the first `writes` of the inode's life is for.
  static std::size_t Covered(const Inode& inode, std::uint64_t writes);
  static std::uint64_t WritesSoFar(const Inode& inode) { return inode.synced_writes + inode.unsynced.size(); }
  // A write that was in flight at the crash: chance decides over it as over the unsynced.
  void LeaveInDoubt(Inode& inode, const IoRequest& request);
  std::uint64_t Unhangs(const Inode& inode) const {
    auto at = unhangs_.find(inode.path);
    return at == unhangs_.end() ? 0 : at->second;
  }
  static void Apply(std::vector<std::byte>& to, std::uint64_t offset, std::span<const std::byte> bytes);

  Random random_;
  FaultHook faults_;
  TimeHook time_;
  std::array<std::uint64_t, kFaultKinds> injected_{};
  std::map<std::string, std::uint64_t> unhangs_;
  std::map<std::string, InodePtr> names_;
  std::map<std::string, InodePtr> durable_names_;
  std::vector<Lost> lost_;
  std::vector<std::vector<NameChange>> changes_;  // not durable; what one call changes is changed together
};

}  // namespace cistern::io
