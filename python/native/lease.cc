// SPDX-License-Identifier: Apache-2.0
#include "lease.h"

#include "base/format.h"
#include "errors.h"

namespace cistern::python {
namespace {

int GetBuffer(PyObject* object, Py_buffer* buffer, int flags) {
  const LeasedView* view = nb::inst_ptr<LeasedView>(object);
  buffer->obj = nullptr;
  if (!view->lease->good(view->at)) {
    SetPythonError(
        Status(Code::kLapsed, Text("view ", view->at, " of a lease that has ended: acquire it again")));
    return -1;
  }
  return PyBuffer_FillInfo(buffer, object, const_cast<std::byte*>(view->view().data),
                           static_cast<Py_ssize_t>(view->view().bytes), 1, flags);
}

PyType_Slot view_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)}, {0, nullptr}};

}  // namespace

void BindLease(nb::module_& m) {
  nb::class_<LeasedView>(m, "View", nb::type_slots(view_slots))
      .def_prop_ro("nbytes", [](const LeasedView& view) { return view.view().bytes; });
  nb::class_<LeaseHandle>(m, "Lease")
      .def("views",
           [](const LeaseHandle& handle) {
             nb::list views;
             for (std::size_t i = 0; i < handle.lease->views().size(); ++i) {
               if (handle.lease->views()[i].data == nullptr)
                 views.append(nb::none());
               else
                 views.append(LeasedView{handle.lease, i});
             }
             return views;
           })
      .def("good", [](const LeaseHandle& handle) { return handle.lease->good(); })
      .def("release", [](const LeaseHandle& handle) { handle.lease->Release(); });
}

}  // namespace cistern::python
