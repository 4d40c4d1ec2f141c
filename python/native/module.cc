// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include <exception>
#include <string>

#include "errors.h"
#include "keys.h"
#include "lease.h"
#include "store.h"
#include "transfers.h"

namespace cistern::python {

void SetPythonError(const Status& status) {
  nb::gil_scoped_acquire with;
  nb::object kinds = nb::module_::import_("cistern.errors").attr("ERROR_OF");
  nb::object kind = kinds[nb::int_(static_cast<int>(status.code()))];
  PyErr_SetString(kind.ptr(), std::string(status.message()).c_str());
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
  BindStore(m);
  BindTransfers(m);
}
