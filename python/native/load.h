// SPDX-License-Identifier: Apache-2.0
// The decision whether to load or to compute (policy/load.h), on plain Python values.
#pragma once

#include <nanobind/nanobind.h>

namespace cistern::python {

void BindLoad(nanobind::module_& m);

}  // namespace cistern::python
