// SPDX-License-Identifier: Apache-2.0
#include "buffers.h"

#include <utility>

#include "errors.h"

namespace cistern::python {
namespace {

// With its dtype, where it has one.
std::string TypeName(nb::handle object) {
  std::string name = nb::type_name(object.type()).c_str();
  if (!nb::hasattr(object, "dtype")) return name;
  const nb::object dtype = object.attr("dtype");
  const nb::str text(nb::handle(dtype.ptr()));
  return Text(name, " of dtype ", std::string_view(text.c_str()));
  return name;
}

// The pending Python exception's text, which it clears.
std::string TakePythonError() {
  nb::python_error error;
  return nb::str(error.value()).c_str();
}

// Whether items of this format (as module struct writes it) are Python objects: pointers, not bytes. Names of
// fields stand between colons.
bool HoldsObjects(const char* format) {
  bool name = false;
  for (; format != nullptr && *format != '\0'; ++format) {
    if (*format == ':') name = !name;
    if (!name && *format == 'O') return true;
  }
  return false;
}

}  // namespace

bool HasMemory(nb::handle object) {
  return PyObject_CheckBuffer(object.ptr()) || nb::hasattr(object, "__dlpack__");
}

nb::object SequenceOf(nb::handle object, const ArgumentName& name) {
  if (PyUnicode_Check(object.ptr()) || PyBytes_Check(object.ptr()) || !PySequence_Check(object.ptr()))
    Throw(Code::kInvalid, Text(name.text(), " is of type ", TypeName(object), ", a sequence is needed"));
  nb::object items = nb::steal(PySequence_Tuple(object.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  return items;
}

HeldBuffer::HeldBuffer(nb::handle object, bool writable, const ArgumentName& name) {
  if (PyObject_CheckBuffer(object.ptr())) {
    HoldBuffer(object, writable, name);
  } else if (nb::hasattr(object, "__dlpack__")) {
    HoldTensor(object, writable, name);
  } else {
    Throw(Code::kInvalid, Text(name.text(), " is of type ", TypeName(object),
                               ", which is no buffer: give bytes, a memoryview, an array or a CPU tensor"));
  }
}

HeldBuffer::HeldBuffer(HeldBuffer&& other) noexcept
    : view_(std::exchange(other.view_, Py_buffer{})),
      tensor_(std::move(other.tensor_)),
      bytes_(other.bytes_) {
  other.tensor_.reset();
  other.bytes_ = {};
}

HeldBuffer::~HeldBuffer() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

void HeldBuffer::HoldBuffer(nb::handle object, bool writable, const ArgumentName& name) {
  const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
    view_ = Py_buffer{};
    // A lease that lapsed has an error of its own.
    if (!PyErr_ExceptionMatches(PyExc_BufferError) && !PyErr_ExceptionMatches(PyExc_ValueError) &&
        !PyErr_ExceptionMatches(PyExc_TypeError))
      throw nb::python_error();
    const std::string why = TakePythonError();  // first: no other call may find it pending
    Throw(Code::kInvalid,
          Text(name.text(), " of type ", TypeName(object), ": ", why,
               writable ? "; writable contiguous memory is needed" : "; contiguous memory is needed"));
  }
  if (HoldsObjects(view_.format)) {
    PyBuffer_Release(&view_);
    view_ = Py_buffer{};
    Throw(Code::kInvalid, Text(name.text(), " of type ", TypeName(object),
                               " holds Python objects, of which only the addresses would be moved: give an "
                               "array of numbers or bytes"));
  }
  bytes_ = std::span(static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len));
}

void HeldBuffer::HoldTensor(nb::handle object, bool writable, const ArgumentName& name) {
  // Asked first: a device's export may synchronise, or give a pointer that this process must not follow.
  int kind = 0;
  try {
    kind = nb::cast<int>(nb::int_(nb::cast<nb::tuple>(object.attr("__dlpack_device__")())[0]));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    Throw(Code::kInvalid, Text(name.text(), " of type ", TypeName(object),
                               " does not say where it lies: ", nb::str(error.value()).c_str()));
  }
  if (kind != nb::device::cpu::value)
    Throw(Code::kInvalid, Text(name.text(), " of type ", TypeName(object), " lies on a device of kind ", kind,
                               " (as DLPack counts): only memory of this host can be moved, copy it there"));
  // PyTorch's views whose numbers are others than those in their memory.
  for (const auto& [ask, resolve] :
       {std::pair("is_conj", "resolve_conj"), std::pair("is_neg", "resolve_neg")}) {
    if (nb::hasattr(object, ask) && nb::cast<bool>(object.attr(ask)()))
      Throw(Code::kInvalid,
            Text(name.text(), " of type ", TypeName(object),
                 " is a view whose memory holds other numbers than it says: give its ", resolve, "()"));
  }
  try {
    tensor_ = nb::cast<nb::ndarray<>>(object);
  } catch (const nb::cast_error&) {
    const std::string why = PyErr_Occurred() ? TakePythonError() : "it gives no DLPack tensor";
    Throw(Code::kInvalid, Text(name.text(), " of type ", TypeName(object), ": ", why));
  }
  std::int64_t expected = 1;
  for (std::size_t i = tensor_->ndim(); i-- > 0;) {
    const auto extent = static_cast<std::int64_t>(tensor_->shape(i));
    if (extent > 1 && tensor_->stride(i) != expected)
      Throw(Code::kInvalid, Text(name.text(), " of type ", TypeName(object),
                                 " is not contiguous: contiguous memory is needed"));
    expected *= extent;
  }
  (void)writable;  // DLPack before 1.0 has no word for it
  // An item may be several numbers, such as two of 4 bits: nbytes() counts one.
  const std::size_t bits = std::size_t{tensor_->dtype().bits} * tensor_->dtype().lanes * tensor_->size();
  bytes_ = std::span(static_cast<std::byte*>(tensor_->data()), (bits + 7) / 8);
}

}  // namespace cistern::python
