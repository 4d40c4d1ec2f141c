// SPDX-License-Identifier: Apache-2.0
// Opening devices: probing all of them, then making, formatting and resizing them. Nothing is touched before
// all were probed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/task.h"
#include "flash/format.h"
#include "flash/media.h"

namespace cistern::flash {

class DeviceOpener final {
 public:
  // `known` are the ids of devices that the journal `journal_id` has waited for.
  DeviceOpener(Media& media, std::uint64_t journal_id, std::vector<std::uint64_t> known)
      : media_(media), journal_id_(journal_id), known_(std::move(known)) {}

  Executor& executor() const { return media_.executor(); }

  Task<Status> Open();
  // All regions of the device are free afterwards: its id is new, so nothing on it is believed.
  Task<Status> BringBack(std::string path);

 private:
  // What a device is, before anything is touched.
  struct ProbeResult {
    io::File file;
    std::string file_path;
    bool create = false;
    bool block_device = false;
    std::uint64_t size_bytes = 0;  // as it is
    std::optional<Superblock> superblock;
    bool foreign = false;
    Status taken;  // not ok: somebody has its lock, and nothing was read
  };

  Task<Result<ProbeResult>> Probe(std::size_t at);
  Task<Status> Lock(io::File& file, const std::string& path);
  Task<bool> Used(io::File& file, const Superblock& superblock, std::uint64_t size_bytes);
  Status CheckLimits(const io::File& file, const std::string& path) const;
  void ChooseRegionBytes(const std::vector<ProbeResult>& probes);
  Status CheckProbe(std::size_t at, const ProbeResult& probe) const;
  std::uint64_t WantedBytes(std::size_t at, const ProbeResult& probe) const;
  std::uint64_t RegionsIn(std::uint64_t bytes) const {
    return (bytes - kSuperBytes) / media_.geometry().region_bytes;
  }
  bool Believed(const Superblock& superblock, std::string* why) const;
  Task<Status> Create(std::size_t at, ProbeResult& probe);
  Task<Status> Start(std::size_t at, ProbeResult& probe);
  Task<Status> Format(DeviceRegions& device, std::uint64_t id);
  Task<Status> EmptyNewRegions(DeviceRegions& device, std::uint32_t from);
  Status MayComeBack(const DeviceRegions& device) const;

  Media& media_;
  const std::uint64_t journal_id_;
  const std::vector<std::uint64_t> known_;
};

}  // namespace cistern::flash
