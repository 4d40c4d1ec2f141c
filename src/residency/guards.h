// SPDX-License-Identifier: Apache-2.0
// Guards of references and slot uses. A guard that is destroyed because its node died (BlockStore::Abandon,
// in simulation) gives nothing back: a dead process writes nothing.
#pragma once

#include <utility>
#include <vector>

#include "residency/residents.h"

namespace cistern::residency {

// A reference on a record: the record stays in its slot, and is not folded in the lower tier.
class RecordReference final {
 public:
  RecordReference() = default;
  RecordReference(Residents& residents, catalog::RecordHandle handle)
      : residents_(&residents), handle_(handle) {
    residents.AddReference(handle.record);
  }
  RecordReference(RecordReference&& other) noexcept
      : residents_(std::exchange(other.residents_, nullptr)), handle_(other.handle_) {}
  RecordReference& operator=(RecordReference&& other) noexcept {
    RecordReference old(std::move(*this));
    residents_ = std::exchange(other.residents_, nullptr);
    handle_ = other.handle_;
    return *this;
  }
  ~RecordReference() { Drop(); }

  bool holds() const { return residents_ != nullptr; }
  const catalog::RecordHandle& handle() const { return handle_; }
  void Drop(Residents::Used used = Residents::Used::kYes) {
    Residents* const residents = std::exchange(residents_, nullptr);
    if (residents != nullptr && !residents->abandoned()) residents->DropReference(handle_, used);
  }
  // The reference goes on without a guard: it is a lease's, and Residents::DropReference ends it.
  catalog::RecordHandle Detach() {
    residents_ = nullptr;
    return handle_;
  }

 private:
  Residents* residents_ = nullptr;  // null: no reference
  catalog::RecordHandle handle_;
};

// The references of a lease, which ends them one by one.
inline std::vector<catalog::RecordHandle> DetachAll(std::vector<RecordReference>& references) {
  std::vector<catalog::RecordHandle> handles;
  handles.reserve(references.size());
  for (RecordReference& reference : references) handles.push_back(reference.Detach());
  return handles;
}

// A use of a slot by a transfer or a copy: if its record leaves, the slot is not given out again before the
// use ends.
class SlotUse final {
 public:
  SlotUse(Residents& residents, arena::Place place) : residents_(&residents), place_(place) {
    residents.BeginUse(place);
  }
  SlotUse(SlotUse&& other) noexcept
      : residents_(std::exchange(other.residents_, nullptr)), place_(other.place_) {}
  SlotUse& operator=(SlotUse&& other) noexcept {
    SlotUse old(std::move(*this));
    residents_ = std::exchange(other.residents_, nullptr);
    place_ = other.place_;
    return *this;
  }
  ~SlotUse() { End(); }
  void End() {
    Residents* const residents = std::exchange(residents_, nullptr);
    if (residents != nullptr && !residents->abandoned()) residents->EndUse(place_);
  }

 private:
  Residents* residents_;
  arena::Place place_;
};

}  // namespace cistern::residency
