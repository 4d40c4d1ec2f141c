// SPDX-License-Identifier: Apache-2.0
// A cistern.NamespaceSpec of Python as one of C++.
#pragma once

#include <nanobind/nanobind.h>

#include "cistern/namespace.h"

namespace cistern::python {

// Throws kInvalid for a value of a wrong type; Attach judges the rest.
NamespaceSpec SpecFrom(nanobind::handle spec);

}  // namespace cistern::python
