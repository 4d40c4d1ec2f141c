// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "cistern/store.h"

namespace cistern::python {

namespace nb = nanobind;

// A store that Python can close while calls are under way: each holds what it needs.
class StoreHandle final {
 public:
  explicit StoreHandle(Store store) : store_(std::make_shared<Store>(std::move(store))) {}
  ~StoreHandle() { Close(); }
  StoreHandle(StoreHandle&&) noexcept = default;

  // Throws kGone once closed.
  const std::shared_ptr<Store>& get() const;
  // With the GIL, which it lets go of: a node that ends takes its time.
  void Close();

 private:
  std::shared_ptr<Store> store_;
};

struct NamespaceHandle {
  Namespace ns;
};

void BindStore(nb::module_& m);

}  // namespace cistern::python
