// SPDX-License-Identifier: Apache-2.0
#include "flash/device_regions.h"

#include <algorithm>

#include "base/assert.h"
#include "base/format.h"
#include "tier/tier.h"

namespace cistern::flash {

using State = Region::State;

void DeviceRegions::SetRegions(std::uint32_t first, std::uint32_t count) {
  first_ = first;
  regions_ = std::vector<Region>(count);
}

Task<Status> DeviceRegions::WriteHeader(std::uint32_t region, std::uint64_t epoch,
                                        std::uint64_t first_sequence) {
  Buffer buffer = pool_.Take(geometry_.unit);
  EncodeRegionHeader({id, epoch, first_sequence, region - first_}, buffer.bytes().first(geometry_.unit));
  Status status = co_await device_.Write(buffer, geometry_.unit, OffsetOf(region, 0));
  if (status.ok()) status = co_await device_.Sync();
  if (!status.ok()) {
    device_.FailedFor(Text("the header of region ", region - first_, " could not be written"), status);
  }
  co_return status;
}

Task<Status> DeviceRegions::MakeDurable() {
  Status status = co_await device_.Sync();
  if (!status.ok())
    device_.FailedFor("what was written is not durable", status);
  co_return status;
}

Writing& DeviceRegions::BeginHeader(std::uint32_t region, std::uint64_t epoch, std::uint64_t first_sequence) {
  CISTERN_ASSERT(region == next_free());
  at(region).epoch_ = epoch;
  at(region).first_sequence_ = first_sequence;
  return BeginWriting(region);
}

std::uint32_t DeviceRegions::Open() {
  CISTERN_ASSERT(open_ == kNoRegion);
  open_ = free_.front();
  free_.pop_front();
  at(open_).Open();
  return open_;
}

void DeviceRegions::BeginClosing() {
  at(open_).BeginClosing();
  open_ = kNoRegion;
}

void DeviceRegions::Closed(std::uint32_t region) {
  at(region).Closed();
  IntoClosed(region);
}

std::uint32_t DeviceRegions::Take() {
  CISTERN_ASSERT(any_closed());
  const std::uint32_t region = empty_.empty() ? closed_.begin()->second : *empty_.begin();
  at(region).Take();
  closed_.erase({at(region).first_sequence_, region});
  empty_.erase(region);
  return region;
}

void DeviceRegions::GiveBack(std::uint32_t region) {
  at(region).GiveBack();
  IntoClosed(region);
}

void DeviceRegions::Free(std::uint32_t region) {
  SetLeast(region, UINT64_MAX);
  at(region).Free();
  free_.push_back(region);
}

void DeviceRegions::IntoClosed(std::uint32_t region) {
  closed_.insert({at(region).first_sequence_, region});
  if (at(region).live_bytes_ == 0) empty_.insert(region);
}

Writing& DeviceRegions::BeginWriting(std::uint32_t region) {
  CISTERN_ASSERT(at(region).writing_ == nullptr);
  at(region).writing_ = std::make_unique<Writing>();
  writing_.push_back(region);
  return *at(region).writing_;
}

void DeviceRegions::EndWriting(std::uint32_t region) {
  at(region).writing_.reset();
  std::erase(writing_, region);
  writing_ended_.Pulse();
}

void DeviceRegions::Adopt(std::uint32_t region, std::uint64_t record_bytes) {
  at(region).live_bytes_ += record_bytes;
  live_bytes_ += record_bytes;
  empty_.erase(region);
}

void DeviceRegions::Forget(std::uint32_t region, std::uint64_t record_bytes) {
  Region& of = at(region);
  CISTERN_ASSERT(of.live_bytes_ >= record_bytes);
  of.live_bytes_ -= record_bytes;
  live_bytes_ -= record_bytes;
  if (of.live_bytes_ == 0 && closed_.contains({of.first_sequence_, region})) empty_.insert(region);
}

void DeviceRegions::SetLeast(std::uint32_t region, std::uint64_t sequence) {
  Region& of = at(region);
  if (sequence == of.least_sequence_) return;
  const auto old = sequences_.find(of.least_sequence_);
  if (old != sequences_.end()) sequences_.erase(old);
  of.least_sequence_ = sequence;
  if (sequence != UINT64_MAX) sequences_.insert(sequence);
}

void DeviceRegions::Settle(std::uint32_t region) {
  if (at(region).is(State::kClosed)) {
    IntoClosed(region);
  } else {
    free_.push_back(region);
  }
}

void DeviceRegions::Clear() {
  free_.clear();
  closed_.clear();
  empty_.clear();
  sequences_.clear();
  open_ = kNoRegion;
  live_bytes_ = 0;
}

FlashDeviceState DeviceRegions::Figures() const {
  const Device::Counts& counts = device_.counts();
  FlashDeviceState state;
  state.path = path();
  state.id = id;
  state.in_service = in_service();
  state.why = device_.why();
  state.size_bytes = size_bytes;
  state.read_bytes = counts.read_bytes;
  state.written_bytes = counts.written_bytes;
  state.reads = counts.reads;
  state.writes = counts.writes;
  state.errors = counts.errors;
  state.bad_records = counts.bad_records;
  state.in_flight = device_.in_flight();
  state.read_estimate_us =
      in_service() ? static_cast<std::int64_t>(device_.EstimateUs(64 << 10)) : tier::Tier::kNever;
  return state;
}

}  // namespace cistern::flash
