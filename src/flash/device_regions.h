// SPDX-License-Identifier: Apache-2.0
// A device with its regions, which are [first, end) of the tier's. The one who changes a region's state, so
// that it agrees with the sets in which the region is: free, open, being written, closed, empty, and the
// least sequences of all that is not free.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/task.h"
#include "flash/address.h"
#include "flash/buffer.h"
#include "flash/device.h"
#include "flash/figures.h"
#include "flash/region.h"

namespace cistern::flash {

class DeviceRegions final {
 public:
  // `geometry` and `pool` are borrowed. `out` is told once, when the device leaves service.
  DeviceRegions(io::Loop& loop, std::string path, Device::Limits limits, const Geometry& geometry,
                BufferPool& pool, std::function<void(DeviceRegions&)> out)
      : device_(loop, std::move(path), limits, [this, out = std::move(out)] { out(*this); }),
        geometry_(geometry),
        pool_(pool) {}
  DeviceRegions(const DeviceRegions&) = delete;
  DeviceRegions& operator=(const DeviceRegions&) = delete;

  Executor& executor() const { return device_.executor(); }
  Device& device() { return device_; }
  const Device& device() const { return device_; }
  bool in_service() const { return device_.in_service(); }
  const std::string& path() const { return device_.path(); }
  FlashDeviceState Figures() const;

  std::uint64_t id = 0;    // 0: it is not formatted
  bool formatted = false;  // since it was opened: what it held is nothing that is missed
  std::uint64_t size_bytes = 0;
  bool forgotten = true;        // the owner knows no location on it any more
  std::uint64_t taken_out = 0;  // how often, by hand
  std::uint32_t users = 0;      // tasks that hold on to it: DeviceUse
  // Nothing of its life is left: of one that is out of service.
  bool ended() const { return device_.out() && forgotten && !in_use(); }
  bool in_use() const { return users > 0 || device_.busy() || !writing_.empty(); }

  // ---- the regions ----
  void SetRegions(std::uint32_t first, std::uint32_t count);
  std::uint32_t first() const { return first_; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(regions_.size()); }
  std::uint32_t end() const { return first_ + count(); }
  bool Has(std::uint32_t region) const { return region - first_ < count(); }
  Region& at(std::uint32_t region) { return regions_[region - first_]; }
  const Region& at(std::uint32_t region) const { return regions_[region - first_]; }
  std::uint64_t OffsetOf(std::uint32_t region, std::uint32_t unit) const {
    return kSuperBytes + (region - first_) * geometry_.region_bytes + std::uint64_t{unit} * geometry_.unit;
  }
  // A header, durably; epoch 0: the region is empty. A device that cannot write it goes out of service.
  Task<Status> WriteHeader(std::uint32_t region, std::uint64_t epoch, std::uint64_t first_sequence);

  // What was written to it; a device that cannot goes out of service.
  Task<Status> MakeDurable();

  std::size_t free() const { return free_.size(); }
  bool any_closed() const { return !closed_.empty(); }
  bool any_empty() const { return !empty_.empty(); }
  std::uint64_t live_bytes() const { return live_bytes_; }
  // The least that a record on it may have; UINT64_MAX when there is none.
  std::uint64_t oldest_sequence() const { return sequences_.empty() ? UINT64_MAX : *sequences_.begin(); }

  // ---- a region's way: free, open, closing, closed, taken, releasing, free ----
  std::uint32_t open() const { return open_; }  // kNoRegion: none is
  // The region that is opened next; kNoRegion: none is free.
  std::uint32_t next_free() const { return free_.empty() ? kNoRegion : free_.front(); }
  // The next free region has a header of its own from now on, which the caller writes.
  Writing& BeginHeader(std::uint32_t region, std::uint64_t epoch, std::uint64_t first_sequence);
  std::uint32_t Open();
  void BeginClosing();
  void Closed(std::uint32_t region);
  // One in which nothing lives, or the oldest. Some region is closed (asserted).
  std::uint32_t Take();
  void GiveBack(std::uint32_t region);
  void BeginRelease(std::uint32_t region) { at(region).BeginRelease(); }
  void Free(std::uint32_t region);

  // ---- what is being written: regions from their header to their table ----
  const std::vector<std::uint32_t>& writing() const { return writing_; }
  Writing& BeginWriting(std::uint32_t region);
  void EndWriting(std::uint32_t region);
  Event& writing_ended() { return writing_ended_; }

  // ---- what lives, and since when ----
  void Adopt(std::uint32_t region, std::uint64_t record_bytes);
  void Forget(std::uint32_t region, std::uint64_t record_bytes);
  void SetLeast(std::uint32_t region, std::uint64_t sequence);

  // ---- after a start: each region is found or not, then settled ----
  void Found(std::uint32_t region, std::uint64_t epoch, std::uint64_t first_sequence) {
    at(region).Found(epoch, first_sequence);
  }
  void FoundEmpty(std::uint32_t region) { at(region).FoundEmpty(); }
  // The region goes to the free or the closed ones.
  void Settle(std::uint32_t region);
  // All that was known of its regions is gone; each is to be Reset, then settled.
  void Clear();
  void Reset(std::uint32_t region) { at(region) = Region(); }

  // ---- readers ----
  void BeginRead(std::uint32_t region) { ++at(region).readers_; }
  void EndRead(std::uint32_t region) {
    if (--at(region).readers_ == 0) readers_left_.Pulse();
  }
  Event& readers_left() { return readers_left_; }

 private:
  void IntoClosed(std::uint32_t region);

  Device device_;
  const Geometry& geometry_;
  BufferPool& pool_;
  std::uint32_t first_ = 0;
  std::vector<Region> regions_;
  std::uint64_t live_bytes_ = 0;
  std::uint32_t open_ = kNoRegion;
  std::deque<std::uint32_t> free_;                            // first in, first out: wear is levelled
  std::vector<std::uint32_t> writing_;                        // regions that have a Writing
  std::set<std::pair<std::uint64_t, std::uint32_t>> closed_;  // oldest first
  std::set<std::uint32_t> empty_;                             // of the closed, those in which nothing lives
  std::multiset<std::uint64_t> sequences_;                    // the least of each region that is not free
  Event writing_ended_;
  Event readers_left_;
};

// A task that uses a device: the device is not brought back meanwhile.
class DeviceUse final {
 public:
  explicit DeviceUse(DeviceRegions& regions) : regions_(regions) { ++regions_.users; }
  ~DeviceUse() { --regions_.users; }
  DeviceUse(const DeviceUse&) = delete;
  DeviceUse& operator=(const DeviceUse&) = delete;

 private:
  DeviceRegions& regions_;
};

}  // namespace cistern::flash
