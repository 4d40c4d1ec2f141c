// SPDX-License-Identifier: Apache-2.0
// The memory of a Python object: by the buffer protocol, or of a CPU tensor by __dlpack__.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/format.h"

namespace cistern::python {

namespace nb = nanobind;

// Where an argument stands, for messages: "data[3]" or "data[3][1]"; made into text only for an error.
struct ArgumentName {
  std::string_view name;
  std::ptrdiff_t first = -1;
  std::ptrdiff_t second = -1;
  std::string text() const {
    std::string out(name);
    for (std::ptrdiff_t at : {first, second}) {
      if (at >= 0) AppendText(out, Text("[", at, "]"));
    }
    return out;
  }
};

// Whether Hold could take it: it has the buffer protocol or __dlpack__.
bool HasMemory(nb::handle object);

// Its items as a tuple, to be read with PySequence_Fast_*: who looks at one may run Python code, which may
// change a list. Throws kInvalid where it is no sequence, or a text.
nb::object SequenceOf(nb::handle object, const ArgumentName& name);

// Holds the object's memory: it neither moves nor goes while this lives. Made and ended with the GIL.
class HeldBuffer final {
 public:
  // Throws kInvalid where the object has no memory, is not contiguous, not in this host's memory, or
  // read-only where `writable` is asked for.
  HeldBuffer(nb::handle object, bool writable, const ArgumentName& name);
  HeldBuffer(HeldBuffer&& other) noexcept;
  HeldBuffer& operator=(HeldBuffer&&) = delete;
  ~HeldBuffer();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  void HoldBuffer(nb::handle object, bool writable, const ArgumentName& name);
  void HoldTensor(nb::handle object, bool writable, const ArgumentName& name);

  Py_buffer view_{};
  std::optional<nb::ndarray<>> tensor_;
  std::span<std::byte> bytes_;
};

}  // namespace cistern::python
