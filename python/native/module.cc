// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include <exception>
#include <string_view>

#include "errors.h"
#include "keys.h"
#include "lease.h"
#include "load.h"
#include "store.h"
#include "transfers.h"

namespace cistern::python {

void SetPythonError(const Status& status) {
  nb::gil_scoped_acquire with;
  nb::object kinds = nb::module_::import_("cistern.errors").attr("ERROR_OF");
  nb::object kind = kinds[nb::int_(static_cast<int>(status.code()))];
  // With its length, since a name that it quotes may have a zero byte; and whatever bytes that has.
  const std::string_view text = status.message();
  const nb::object message =
      nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
  if (message.is_valid()) PyErr_SetObject(kind.ptr(), message.ptr());
}

}  // namespace cistern::python

NB_MODULE(_native, m) {
  namespace nb = nanobind;
  using namespace cistern::python;
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const StatusError& error) {
      SetPythonError(error.status());
    }
  });
  // What others keep at the end is not this package's: NumPy 2 keeps an array whose reduction raised.
  nb::set_leak_warnings(false);
  m.attr("__version__") = CISTERN_VERSION;
  BindKeys(m);
  BindLease(m);
  BindLoad(m);
  BindStore(m);
  BindTransfers(m);
}
