// SPDX-License-Identifier: Apache-2.0
// Pages and Transfers. The threads behind them know nothing of Python; what Python has to keep for them (the
// pages' owner) is kept here until a transfer is given out.
#include "transfers.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arguments.h"
#include "base/clock.h"
#include "base/format.h"
#include "buffers.h"
#include "errors.h"
#include "gil.h"
#include "keys.h"
#include "store.h"
#include "transfer/transfers.h"

namespace cistern::python {
namespace {

using PagesPtr = std::shared_ptr<const transfer::Pages>;

template <class T>
T ValueOf(Result<T> result) {
  if (!result) throw StatusError(std::move(result.error()));
  return std::move(*result);
}

struct PagesHandle {
  PagesPtr pages;
};

using FragmentTuple = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;
using BufferFragment = std::tuple<std::size_t, std::uint64_t, std::uint64_t, std::uint64_t>;
using RegionTuple = std::tuple<std::uint64_t, std::uint64_t>;

std::byte* PointerTo(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
}

PagesHandle MakePages(const std::vector<FragmentTuple>& fragments, std::uint64_t pages,
                      std::uint64_t first_page, const std::optional<std::vector<RegionTuple>>& regions) {
  std::vector<transfer::Fragment> list;
  for (const auto& [address, stride, bytes] : fragments) list.push_back({PointerTo(address), stride, bytes});
  std::vector<std::span<std::byte>> spans;
  transfer::Pages::Spec spec{
      .fragments = list, .pages = pages, .first_page = first_page, .regions = std::nullopt};
  if (regions) {
    for (const auto& [address, bytes] : *regions) spans.emplace_back(PointerTo(address), bytes);
    spec.regions = spans;
  }
  return {std::make_shared<const transfer::Pages>(ValueOf(transfer::Pages::Make(spec)))};
}

// The caller keeps the buffers: what they export may be held for longer than a Py_buffer should be, so only
// their place is taken.
PagesHandle PagesOver(nb::list buffers, const std::vector<BufferFragment>& fragments, std::uint64_t pages,
                      std::uint64_t first_page) {
  std::vector<std::span<std::byte>> regions;
  for (std::size_t i = 0; i < buffers.size(); ++i)
    regions.push_back(HeldBuffer(buffers[i], true, {"buffers", static_cast<std::ptrdiff_t>(i)}).bytes());
  std::vector<transfer::Fragment> list;
  for (const auto& [buffer, offset, stride, bytes] : fragments) {
    if (buffer >= regions.size() || offset > regions[buffer].size())
      Throw(Code::kInvalid, Text("fragment ", list.size(), " begins at ", offset, " of buffer ", buffer,
                                 ", which is not there: there are ", regions.size(), " buffers"));
    // Within its own buffer, not within a neighbour that happens to lie behind it.
    transfer::Fragment fragment{regions[buffer].data() + offset, stride, bytes};
    const std::span<const std::span<std::byte>> own = std::span(regions).subspan(buffer, 1);
    if (Result<transfer::Pages> alone = transfer::Pages::Make(
            {.fragments = std::span(&fragment, 1), .pages = pages, .first_page = first_page, .regions = own});
        !alone)
      Throw(alone.error().code(), Text("of fragment ", list.size(), ": ", alone.error().message()));
    list.push_back(fragment);
  }
  return {std::make_shared<const transfer::Pages>(ValueOf(transfer::Pages::Make(
      {.fragments = list, .pages = pages, .first_page = first_page, .regions = std::nullopt})))};
}

nb::bytes Gather(const PagesHandle& handle, std::uint32_t page) {
  const transfer::Pages& pages = *handle.pages;
  if (Status status = pages.Check(std::span(&page, 1), false); !status.ok())
    throw StatusError(std::move(status));
  std::vector<std::span<std::byte>> pieces(pages.fragments());
  pages.PiecesOf(page, pieces);
  std::string part;
  for (std::span<std::byte> piece : pieces)
    part.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  return nb::bytes(part.data(), part.size());
}

std::uint32_t PageId(std::int64_t id, std::size_t at) {
  if (id < 0 || id > UINT32_MAX)
    Throw(Code::kInvalid, Text("page_ids[", at, "] is ", id, ", which is no page"));
  return static_cast<std::uint32_t>(id);
}

template <class Int>
std::vector<std::uint32_t> PageIdsIn(const Py_buffer& view) {
  std::vector<std::uint32_t> ids(static_cast<std::size_t>(view.len) / sizeof(Int));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    Int id;
    std::memcpy(&id, static_cast<const char*>(view.buf) + i * sizeof(Int), sizeof(Int));
    ids[i] = PageId(id, i);
  }
  return ids;
}

// Of a list, or of a buffer of int32 or int64.
std::vector<std::uint32_t> PageIdsFrom(nb::handle page_ids) {
  if (PyObject_CheckBuffer(page_ids.ptr()) && !PyBytes_Check(page_ids.ptr())) {
    Py_buffer view;
    if (PyObject_GetBuffer(page_ids.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0)
      throw nb::python_error();
    struct Release {
      Py_buffer& view;
      ~Release() { PyBuffer_Release(&view); }
    } release{view};
    const std::string_view format = view.format != nullptr ? view.format : "B";
    if (view.itemsize == 4 && format == "i") return PageIdsIn<std::int32_t>(view);
    if (view.itemsize == 8 && (format == "l" || format == "q")) return PageIdsIn<std::int64_t>(view);
    Throw(Code::kInvalid, Text("page_ids has items of format '", format, "': int32 or int64 is needed"));
  }
  nb::object plain = nb::borrow(page_ids);
  if (nb::hasattr(page_ids, "__dlpack__")) plain = page_ids.attr("tolist")();
  nb::object list = SequenceOf(plain, {"page_ids"});
  std::vector<std::uint32_t> ids(static_cast<std::size_t>(PySequence_Fast_GET_SIZE(list.ptr())));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const long long id = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i)));
    if (id == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      Throw(Code::kInvalid, Text("page_ids[", i, "] is no whole number"));
    }
    ids[i] = PageId(id, i);
  }
  return ids;
}

class TransfersHandle final {
 public:
  TransfersHandle(const StoreHandle& store, nb::handle queue, nb::handle max_bytes_per_s) {
    const transfer::TransfersOptions options{
        .queue = ScalarFrom<std::uint32_t>(queue, "queue"),
        .max_bytes_per_s = ScalarFrom<std::uint64_t>(max_bytes_per_s, "max_bytes_per_s")};
    std::shared_ptr<Store> held = store.get();
    std::optional<Result<std::unique_ptr<transfer::Transfers>>> made;
    {
      const WithoutGil without;
      made.emplace(transfer::Transfers::Make(std::move(held), options));
    }
    transfers_ = ValueOf(std::move(*made));
  }
  ~TransfersHandle() {
    const WithoutGil without;
    transfers_.reset();
  }
  TransfersHandle(const TransfersHandle&) = delete;
  TransfersHandle& operator=(const TransfersHandle&) = delete;

  std::uint64_t SubmitLoad(const NamespaceHandle& ns, nb::handle keys, nb::handle pages, nb::handle page_ids,
                           std::uint16_t group, std::uint16_t part, std::int64_t deadline_us,
                           std::int64_t worth_us, bool touch) {
    transfer::PageLoad load;
    SetMove(load, ns, keys, pages, page_ids, group, part, deadline_us);
    load.worth_us = worth_us;
    load.touch = touch;
    return Keep(transfers_->Submit(std::move(load)), pages);
  }

  std::uint64_t SubmitSave(const NamespaceHandle& ns, nb::handle keys, nb::handle pages, nb::handle page_ids,
                           nb::handle put_ids, nb::handle parent, nb::handle parents, std::uint16_t group,
                           std::uint16_t part, bool held, std::uint32_t ttl_s,
                           const std::string& conversation, std::int64_t deadline_us) {
    transfer::PageSave save;
    SetMove(save, ns, keys, pages, page_ids, group, part, deadline_us);
    save.parents = ParentsFrom(*save.keys, parent, parents);
    if (!put_ids.is_none()) save.put_ids = PutIdsFrom(put_ids, save.keys->size());
    save.held = held;
    save.ttl_s = ttl_s;
    save.conversation = conversation;
    return Keep(transfers_->Submit(std::move(save)), pages);
  }

  nb::list Poll() { return Give(transfers_->Poll()); }
  nb::list Wait(double timeout_s) {
    // Python's handlers of signals run between two slices.
    constexpr std::int64_t kSliceUs = 100'000;
    const SystemClock clock;
    const Instant end = clock.Now().PlusUs(Microseconds(timeout_s));
    for (;;) {
      const std::int64_t left_us = std::max<std::int64_t>((end.ns - clock.Now().ns) / 1000, 0);
      std::vector<transfer::TransferDone> done;
      {
        const WithoutGil without;
        done = transfers_->Wait(std::min(left_us, kSliceUs));
      }
      if (!done.empty() || left_us <= kSliceUs || transfers_->in_flight() == 0) return Give(std::move(done));
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  bool WaitPages(const std::optional<std::vector<std::uint64_t>>& ids, double timeout_s) {
    const std::int64_t timeout_us = Microseconds(timeout_s);
    const WithoutGil without;
    if (!ids) return transfers_->WaitPages(std::nullopt, timeout_us);
    return transfers_->WaitPages(std::span(*ids), timeout_us);
  }
  bool Cancel(std::uint64_t id) { return transfers_->Cancel(id); }
  std::size_t in_flight() const { return transfers_->in_flight(); }
  bool IsInFlight(std::uint64_t id) { return transfers_->IsInFlight(id); }
  int event_fd() const { return transfers_->event_fd(); }
  void Close() {
    const WithoutGil without;
    transfers_->Close();
  }

 private:
  static std::int64_t Microseconds(double seconds) {
    if (std::isnan(seconds) || seconds < 0)
      Throw(Code::kInvalid, Text("timeout_s is ", seconds, ", 0 or more is needed"));
    return seconds > 1e9 ? std::int64_t{1} << 50 : static_cast<std::int64_t>(seconds * 1e6);
  }

  // `pages` is the Python object, which has the handle in its field `_native`.
  static void SetMove(transfer::PageMove& move, const NamespaceHandle& ns, nb::handle keys, nb::handle pages,
                      nb::handle page_ids, std::uint16_t group, std::uint16_t part,
                      std::int64_t deadline_us) {
    const PagesHandle* handle = nullptr;
    if (!nb::hasattr(pages, "_native") || !nb::try_cast<const PagesHandle*>(pages.attr("_native"), handle) ||
        handle == nullptr)
      Throw(Code::kInvalid,
            Text("pages is of type ", nb::type_name(pages.type()).c_str(), ", Pages is needed"));
    move.ns = ns.ns;
    move.keys = KeysFrom(keys);
    move.group = group;
    move.part = part;
    move.pages = handle->pages;
    move.page_ids = PageIdsFrom(page_ids);
    move.deadline_us = deadline_us;
  }

  std::uint64_t Keep(Result<std::uint64_t> id, nb::handle pages) {
    const std::uint64_t started = ValueOf(std::move(id));
    kept_.emplace(started, nb::borrow(pages));
    return started;
  }

  nb::list Give(std::vector<transfer::TransferDone> all) {
    nb::list list;
    for (const transfer::TransferDone& done : all) {
      static_assert(sizeof(Code) == 1 && sizeof(WriteOutcome::State) == 1);
      list.append(nb::make_tuple(done.id, done.kind == transfer::TransferKind::kLoad ? "load" : "save",
                                 nb::bytes(done.outcomes.data(), done.outcomes.size()),
                                 nb::bytes(done.states.data(), done.states.size()), done.moved_bytes,
                                 done.took_us, done.message));
      kept_.erase(done.id);
    }
    return list;
  }

  std::unordered_map<std::uint64_t, nb::object> kept_;  // the pages of what is in flight
  std::unique_ptr<transfer::Transfers> transfers_;      // ends first
};

}  // namespace

void BindTransfers(nb::module_& m) {
  nb::class_<PagesHandle> pages(m, "Pages");
  pages
      .def_static("make", CheckedFunction(MakePages, {"fragments", "pages", "first_page", "regions"}),
                  nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg().none())
      .def_static("over", CheckedFunction(PagesOver, {"buffers", "fragments", "pages", "first_page"}),
                  nb::arg(), nb::arg(), nb::arg().none(), nb::arg().none())
      .def_prop_ro("part_bytes", [](const PagesHandle& handle) { return handle.pages->part_bytes(); })
      .def_prop_ro("pages", [](const PagesHandle& handle) { return handle.pages->pages(); })
      .def_prop_ro("first_page", [](const PagesHandle& handle) { return handle.pages->first_page(); });
  Define(pages, "gather", Gather, {"page"});
  nb::class_<TransfersHandle> transfers(m, "Transfers");
  transfers
      .def(nb::init<const StoreHandle&, nb::handle, nb::handle>(), nb::arg(), nb::arg().none(),
           nb::arg().none())
      .def("poll", &TransfersHandle::Poll)
      .def("in_flight", &TransfersHandle::in_flight)
      .def("event_fd", &TransfersHandle::event_fd)
      .def("close", &TransfersHandle::Close);
  Define(transfers, "submit_load", &TransfersHandle::SubmitLoad,
         {"namespace", "keys", "pages", "page_ids", "group", "part", "deadline_us", "worth_us", "touch"});
  Define(transfers, "submit_save", &TransfersHandle::SubmitSave,
         {"namespace", "keys", "pages", "page_ids", "put_ids", "parent", "parents", "group", "part", "held",
          "ttl_s", "conversation", "deadline_us"});
  Define(transfers, "wait", &TransfersHandle::Wait, {"timeout_s"});
  Define(transfers, "wait_pages", &TransfersHandle::WaitPages, {"ids", "timeout_s"});
  Define(transfers, "cancel", &TransfersHandle::Cancel, {"id"});
  Define(transfers, "is_in_flight", &TransfersHandle::IsInFlight, {"id"});
}

}  // namespace cistern::python
