// SPDX-License-Identifier: Apache-2.0
// A cistern.NamespaceSpec and cistern.Hints of Python as those of C++.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <utility>

#include "base/format.h"
#include "cistern/namespace.h"
#include "cistern/options.h"
#include "errors.h"

namespace cistern::python {

// Throws kInvalid for a value of a wrong type or an unknown policy; Attach judges the rest.
NamespaceSpec SpecFrom(nanobind::handle spec);
// The hints of a match; throws likewise.
void SetHints(nanobind::handle hints, MatchOptions& out);

// A policy that a text named; throws its error, which names the argument.
template <class T>
T PolicyFrom(std::string_view name, Result<T> policy) {
  if (!policy) Throw(policy.error().code(), Text(name, ": ", policy.error().message()));
  return *policy;
}

}  // namespace cistern::python
