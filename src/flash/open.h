// SPDX-License-Identifier: Apache-2.0
// Opening devices: probing all of them, then making, formatting and resizing them. Nothing is touched before
// all were probed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/task.h"
#include "flash/format.h"
#include "flash/media.h"
#include "io/files.h"

namespace cistern::flash {

// kInvalid: transfers of this unit do not keep to the limits, and what helps.
Status CheckAlignment(const io::DirectLimits& limits, std::uint32_t unit, const std::string& path);

// kInvalid: so many bytes hold too few regions of this size, or are more than the block device has; of a file
// that is none.
Status CheckBytes(const std::string& path, std::uint64_t bytes, std::uint64_t region_bytes,
                  std::optional<std::uint64_t> block_device_bytes);

class DeviceOpener final {
 public:
  DeviceOpener(Media& media, tier::JournalView journal) : media_(media), journal_(std::move(journal)) {}

  Executor& executor() const { return media_.executor(); }

  Task<Status> Open();
  // All regions of the device are free afterwards: its id is new, so nothing on it is believed.
  Task<Status> BringBack(std::string path);
  // The furthest mark of the journal that a superblock names.
  tier::JournalMark newest_mark() const { return newest_mark_; }
  // The superblocks of the devices in service name it from now on, and so does one that is formatted later.
  Task<Status> Mark(tier::JournalMark mark);

 private:
  // Facts of a device, found without writing to it.
  struct ProbeResult {
    std::string file_path;
    Status absent;  // not ok: there is no file yet, or none that can be opened
    bool block_device = false;
    std::uint64_t size_bytes = 0;   // as it is
    std::uint64_t found_bytes = 0;  // as it was found
    std::optional<Superblock> superblock;
    bool foreign = false;
    bool made = false;  // its file, by this
    Status left_out;    // not ok: somebody has its lock, or it hangs or fails; nothing more is done with it
  };

  // The device is looked at from then on, where it has a file, which is locked.
  Task<Result<ProbeResult>> Probe(std::size_t at);
  // What the device holds that is looked at.
  Task<Result<ProbeResult>> ReadSuperblock(std::size_t at, ProbeResult probe);
  ProbeResult LeftOut(std::size_t at, ProbeResult probe) const;
  ProbeResult Absent(std::size_t at) const;
  Task<Status> Lock(io::File& file, const std::string& path);
  Task<bool> Used(Device& device, const Superblock& superblock, std::uint64_t size_bytes);
  Status CheckLimits(const io::File& file, const std::string& path) const;
  void ChooseRegionBytes(const std::vector<ProbeResult>& probes);
  Status CheckProbe(std::size_t at, const ProbeResult& probe) const;
  std::uint64_t WantedBytes(std::size_t at, const ProbeResult& probe) const;
  std::uint64_t RegionsIn(std::uint64_t bytes) const {
    return bytes < kSuperBytes ? 0 : (bytes - kSuperBytes) / media_.geometry().region_bytes;
  }
  // Believed, where its regions have the size of the tier's.
  bool IsOurs(const Superblock& superblock, std::string* why) const;
  bool Believed(const Superblock& superblock, std::string* why) const;
  // A device and a copy of it, which the journal knows by one id, are refused.
  Status CheckCopies(const std::vector<ProbeResult>& probes) const;
  // Devices that the journal knows and nobody named, or that hold something else now.
  void NoteMissing(const std::vector<ProbeResult>& probes) const;
  Task<Status> Create(std::size_t at, ProbeResult& probe);
  Task<Status> Preallocate(io::File& file, std::uint64_t bytes);
  Task<Status> Start(std::size_t at, ProbeResult& probe);
  Task<Status> WriteSuperblock(DeviceRegions& device, std::uint64_t id);
  Task<Status> Format(DeviceRegions& device, std::uint64_t id);
  Task<Status> EmptyNewRegions(DeviceRegions& device, std::uint32_t from);
  Status MayComeBack(const DeviceRegions& device) const;

  Media& media_;
  const tier::JournalView journal_;
  tier::JournalMark newest_mark_;
  tier::JournalMark mark_;   // what superblocks name
  std::uint64_t marks_ = 0;  // that were begun
};

}  // namespace cistern::flash
