// SPDX-License-Identifier: Apache-2.0
// A Status as a Python exception: cistern.errors has one class a code.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "cistern/status.h"

namespace cistern::python {

// Thrown by this folder only, between a binding and nanobind, which makes the Python exception of it.
class StatusError final : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return "a cistern status"; }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

[[noreturn]] inline void Throw(Code code, std::string message) {
  throw StatusError(Status(code, std::move(message)));
}

// Sets the Python exception of `status`.
void SetPythonError(const Status& status);

}  // namespace cistern::python
