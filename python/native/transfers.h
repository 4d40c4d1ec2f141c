// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace cistern::python {

void BindTransfers(nanobind::module_& m);

}  // namespace cistern::python
