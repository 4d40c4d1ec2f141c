// SPDX-License-Identifier: Apache-2.0
// The store's calls: arguments from Python, the call without the GIL, its answer to Python. Each has a begin_
// of its own, which gives the call in flight, for asyncio.
#include "store.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "base/clock.h"
#include "base/format.h"
#include "buffers.h"
#include "cistern/options.h"
#include "gil.h"
#include "keys.h"
#include "lease.h"
#include "pending.h"
#include "spec.h"
#include "wire/socket_path.h"

namespace cistern::python {
namespace {

template <class T>
T ValueOf(Result<T> result) {
  if (!result) throw StatusError(std::move(result.error()));
  return std::move(*result);
}

// An attribute of a Range.
template <class T>
T NumberOf(nb::handle range, const char* attribute, const ArgumentName& name) {
  return ScalarFrom<T>(range.attr(attribute), Text(name.text(), ": ", attribute));
}

nb::bytes BytesOfCodes(std::span<const Code> codes) { return nb::bytes(codes.data(), codes.size()); }

std::unique_ptr<StoreHandle> Connect(const std::filesystem::path& socket, const std::string& tenant,
                                     nb::handle owner, std::uint64_t staging_bytes, std::int64_t deadline_us,
                                     const std::string& node_user, const std::string& engine_name) {
  ConnectOptions options{.socket = socket,
                         .tenant = tenant,
                         .staging_bytes = staging_bytes,
                         .deadline_us = deadline_us,
                         .node_user = node_user,
                         .engine_name = engine_name};
  if (!owner.is_none()) {
    HeldBuffer token(owner, false, {"owner"});
    if (token.bytes().size() != options.owner.size())
      Throw(Code::kInvalid,
            Text("owner has ", token.bytes().size(), " bytes, a token has ", options.owner.size()));
    std::memcpy(options.owner.data(), token.bytes().data(), options.owner.size());
  }
  std::optional<Result<Store>> store;
  {
    const WithoutGil without;
    store.emplace(Store::Connect(options));
  }
  return std::make_unique<StoreHandle>(ValueOf(std::move(*store)));
}

// Of a pair: its directory or block device, and the bytes of it.
FlashVolume VolumeFrom(nb::handle given, const ArgumentName& name) {
  const nb::object pair = SequenceOf(given, name);
  if (PySequence_Fast_GET_SIZE(pair.ptr()) != 2)
    Throw(Code::kInvalid, Text(name.text(), " is ", nb::repr(given).c_str(),
                               ", a directory or device and its bytes are needed"));
  return {ScalarFrom<std::filesystem::path>(PySequence_Fast_GET_ITEM(pair.ptr(), 0), name.text() + "[0]"),
          ScalarFrom<std::uint64_t>(PySequence_Fast_GET_ITEM(pair.ptr(), 1), name.text() + "[1]")};
}

std::unique_ptr<StoreHandle> Open(std::uint64_t memory_bytes, const std::filesystem::path& memory_dir,
                                  const std::string& tenant, std::uint32_t alignment,
                                  std::uint64_t max_blocks, std::uint32_t movers, std::uint32_t poll_us,
                                  const std::string& loop, nb::handle flash,
                                  const std::filesystem::path& journal_dir, const std::string& flash_write,
                                  const std::string& flash_admit, const std::string& flash_promote,
                                  std::uint64_t flash_budget_bytes_a_day,
                                  std::uint64_t flash_read_ahead_bytes, bool discard_foreign,
                                  std::uint64_t scrub_bytes_per_s) {
  OpenOptions options;
  options.memory_bytes = memory_bytes;
  options.memory_dir = memory_dir;
  options.tenant = tenant;
  options.alignment = alignment;
  options.max_blocks = max_blocks;
  options.movers = movers;
  options.poll_us = poll_us;
  options.loop = loop;
  const nb::object volumes = SequenceOf(flash, {"flash"});
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(volumes.ptr()); ++i)
    options.flash.push_back(VolumeFrom(PySequence_Fast_GET_ITEM(volumes.ptr(), i), {"flash", i}));
  options.journal_dir = journal_dir;
  options.flash_write = PolicyFrom("flash_write", ParseWriteRule(flash_write));
  options.flash_admit = PolicyFrom("flash_admit", ParseAdmission(flash_admit));
  options.flash_promote = PolicyFrom("flash_promote", ParsePromotion(flash_promote));
  options.flash_budget_bytes_a_day = flash_budget_bytes_a_day;
  options.flash_read_ahead_bytes = flash_read_ahead_bytes;
  options.discard_foreign = discard_foreign;
  options.scrub_bytes_per_s = scrub_bytes_per_s;
  std::optional<Result<Store>> store;
  {
    const WithoutGil without;
    store.emplace(Store::Open(options));
  }
  return std::make_unique<StoreHandle>(ValueOf(std::move(*store)));
}

NamespaceHandle Attach(const StoreHandle& handle, nb::handle spec, std::int64_t deadline_us) {
  const NamespaceSpec asked = SpecFrom(spec);
  std::shared_ptr<Store> store = handle.get();
  std::optional<Result<Namespace>> ns;
  {
    const WithoutGil without;
    ns.emplace(store->Attach(asked, deadline_us));
  }
  return NamespaceHandle{ValueOf(std::move(*ns))};
}

// ---- match and acquire ----------------------------------------------------------------------------------

nb::object MatchAnswer(MatchResult result) {
  nb::list runs;
  for (const MatchRun& run : result.runs) {
    const std::string_view where = ToString(run.where);
    runs.append(nb::make_tuple(run.blocks, nb::str(where.data(), where.size()), run.ready_in_us));
  }
  nb::object hold = nb::none();
  if (result.hold) hold = nb::cast(LeaseHandle{std::make_shared<HeldLease>(std::move(result.hold), 0)});
  return nb::make_tuple(result.blocks, runs, hold);
}

PendingCall BeginMatch(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle keys,
                       std::int64_t hold_us, nb::handle hints, std::int64_t deadline_us) {
  KeyList chain = KeysFrom(keys);
  std::shared_ptr<Store> store = handle.get();
  MatchOptions options{.hold_us = hold_us, .deadline_us = deadline_us};
  if (!hints.is_none()) SetHints(hints, options);
  auto begin = [&] { return store->Match(ns.ns, *chain, options); };
  return BeginCall<MatchResult>(
      begin, [store](Result<MatchResult> result) { return MatchAnswer(ValueOf(std::move(result))); });
}

nb::object Match(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle keys, std::int64_t hold_us,
                 std::int64_t max_age_us, nb::handle hints, std::int64_t deadline_us) {
  Chain* chain = nullptr;
  const bool is_chain = nb::try_cast<Chain*>(keys, chain) && chain != nullptr;
  if (max_age_us != 0 && !is_chain) Throw(Code::kInvalid, "max_age_us goes with a Chain, which remembers");
  if (max_age_us != 0 && hold_us != 0)
    Throw(Code::kInvalid, "max_age_us does not go with hold_us: a hold is fresh");
  if (!is_chain || hold_us != 0) return BeginMatch(handle, ns, keys, hold_us, hints, deadline_us)->Finish();
  const void* store = handle.get().get();
  const std::int64_t now_ns = SystemClock().Now().ns;
  if (const auto& known = chain->remembered; known && known->store == store && known->slot == ns.ns.slot() &&
                                             known->incarnation == ns.ns.incarnation() &&
                                             (now_ns - known->at_ns) / 1000 < max_age_us)
    return known->answer;
  nb::object answer = BeginMatch(handle, ns, keys, hold_us, hints, deadline_us)->Finish();
  const auto blocks = nb::cast<std::uint32_t>(nb::object(answer[0]));
  chain->remembered = RememberedMatch{.slot = ns.ns.slot(),
                                      .incarnation = ns.ns.incarnation(),
                                      .store = store,
                                      .at_ns = now_ns,
                                      .blocks = blocks,
                                      .answer = answer};
  return answer;
}

PendingCall BeginAcquire(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle keys,
                         std::uint16_t group, std::int64_t lease_us, std::int64_t deadline_us,
                         std::int64_t worth_us) {
  KeyList list = KeysFrom(keys);
  std::shared_ptr<Store> store = handle.get();
  std::vector<BlockRef> refs;
  refs.reserve(list->size());
  for (const BlockKey& key : *list) refs.push_back({key, group});
  auto begin = [&] {
    return store->Acquire(ns.ns, refs,
                          {.lease_us = lease_us, .deadline_us = deadline_us, .worth_us = worth_us});
  };
  return BeginCall<Lease>(begin, [store, count = refs.size()](Result<Lease> result) -> nb::object {
    if (!result && result.error().code() != Code::kMiss) throw StatusError(std::move(result.error()));
    Lease lease = result ? std::move(*result) : Lease();
    return nb::cast(LeaseHandle{std::make_shared<HeldLease>(std::move(lease), count)});
  });
}

// ---- read -----------------------------------------------------------------------------------------------

// The buffers and ranges of a batch of reads; the spans point into the lists, which do not grow any more.
class ReadBatch final {
 public:
  ReadBatch(KeyList keys, nb::handle into, std::uint16_t group, std::uint16_t part) : keys_(std::move(keys)) {
    nb::object items = SequenceOf(into, {"into"});
    const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
    if (count != keys_->size())
      Throw(Code::kInvalid, Text(count, " destinations for ", keys_->size(), " keys: one a key is needed"));
    reads_.resize(count);
    scatters_.reserve(count);
    std::vector<std::size_t> range_count(count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t before = ranges_.size();
      Add(PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)), static_cast<std::ptrdiff_t>(i),
          part);
      range_count[i] = ranges_.size() - before;
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < count; ++i) {
      reads_[i] = BlockRead{
          .key = (*keys_)[i], .group = group, .ranges = std::span(ranges_).subspan(at, range_count[i])};
      at += range_count[i];
    }
  }

  std::span<const BlockRead> reads() const { return reads_; }

 private:
  void Add(nb::handle item, std::ptrdiff_t at, std::uint16_t part) {
    if (HasMemory(item)) {
      AddRange(HeldBuffer(item, true, {"into", at}), part, 0);
      return;
    }
    nb::object several = SequenceOf(item, {"into", at});
    const Py_ssize_t count = PySequence_Fast_GET_SIZE(several.ptr());
    std::vector<std::span<std::byte>> pieces;
    bool ranges = false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      nb::handle piece = PySequence_Fast_GET_ITEM(several.ptr(), i);
      const ArgumentName name{"into", at, i};
      const bool range = !HasMemory(piece) && nb::hasattr(piece, "into") && nb::hasattr(piece, "offset");
      if (i > 0 && range != ranges)
        Throw(Code::kInvalid,
              Text(name.text(), ": buffers and Ranges in one destination: give the one or the other"));
      ranges = range;
      if (range) {
        AddRange(HeldBuffer(piece.attr("into"), true, name), NumberOf<std::uint16_t>(piece, "part", name),
                 NumberOf<std::uint64_t>(piece, "offset", name));
      } else {
        buffers_.emplace_back(piece, true, name);
        pieces.push_back(buffers_.back().bytes());
      }
    }
    if (ranges) return;
    std::uint64_t bytes = 0;
    for (std::span<std::byte> piece : pieces) bytes += piece.size();
    scatters_.push_back(std::move(pieces));
    ranges_.push_back({.part = part, .bytes = bytes, .pieces = scatters_.back()});
  }

  void AddRange(HeldBuffer buffer, std::uint16_t part, std::uint64_t offset) {
    ranges_.push_back(
        {.part = part, .offset = offset, .bytes = buffer.bytes().size(), .to = buffer.bytes().data()});
    buffers_.push_back(std::move(buffer));
  }

  KeyList keys_;
  std::vector<HeldBuffer> buffers_;
  std::vector<std::vector<std::span<std::byte>>> scatters_;
  std::vector<ReadRange> ranges_;
  std::vector<BlockRead> reads_;
};

PendingCall BeginRead(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle keys, nb::handle into,
                      std::uint16_t group, std::uint16_t part, std::int64_t deadline_us,
                      std::int64_t worth_us, bool touch) {
  auto batch = std::make_shared<ReadBatch>(KeysFrom(keys), into, group, part);
  std::shared_ptr<Store> store = handle.get();
  auto begin = [&] {
    return store->Read(ns.ns, batch->reads(),
                       {.deadline_us = deadline_us, .worth_us = worth_us, .touch = touch});
  };
  return BeginCall<ReadResult>(begin, [store, batch](Result<ReadResult> result) -> nb::object {
    const ReadResult read = ValueOf(std::move(result));
    return nb::make_tuple(read.leading_hits, BytesOfCodes(read.outcomes));
  });
}

// ---- write ----------------------------------------------------------------------------------------------

class WriteBatch final {
 public:
  WriteBatch(KeyList keys, nb::handle data, nb::handle parent, nb::handle parents, std::uint16_t group,
             std::uint16_t part, nb::handle put_ids, bool held)
      : keys_(std::move(keys)) {
    nb::object items = SequenceOf(data, {"data"});
    const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
    if (count != keys_->size())
      Throw(Code::kInvalid,
            Text(count, " buffers of data for ", keys_->size(), " keys: one a key is needed"));
    if (held && put_ids.is_none())
      Throw(Code::kInvalid, "held without put_ids: publish() and abandon() name puts by them");
    std::vector<std::optional<BlockKey>> all_parents = ParentsFrom(*keys_, parent, parents);
    std::vector<PutId> ids(count);
    if (!put_ids.is_none()) ids = PutIdsFrom(put_ids, count);
    gathers_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      BlockWrite write{
          .key = (*keys_)[i], .parent = all_parents[i], .group = group, .part = part, .put_id = ids[i]};
      Set(write, PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i)),
          static_cast<std::ptrdiff_t>(i));
      writes_.push_back(write);
    }
  }

  std::span<const BlockWrite> writes() const { return writes_; }

 private:
  void Set(BlockWrite& write, nb::handle item, std::ptrdiff_t at) {
    if (HasMemory(item)) {
      buffers_.emplace_back(item, false, ArgumentName{"data", at});
      write.data = buffers_.back().bytes();
      return;
    }
    nb::object several = SequenceOf(item, {"data", at});
    std::vector<std::span<const std::byte>> pieces;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(several.ptr()); ++i) {
      buffers_.emplace_back(PySequence_Fast_GET_ITEM(several.ptr(), i), false, ArgumentName{"data", at, i});
      pieces.push_back(buffers_.back().bytes());
    }
    gathers_.push_back(std::move(pieces));
    write.pieces = gathers_.back();
  }

  KeyList keys_;
  std::vector<HeldBuffer> buffers_;
  std::vector<std::vector<std::span<const std::byte>>> gathers_;
  std::vector<BlockWrite> writes_;
};

PendingCall BeginWrite(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle keys, nb::handle data,
                       nb::handle parent, nb::handle parents, std::uint16_t group, std::uint16_t part,
                       nb::handle put_ids, bool held, std::uint32_t ttl_s, const std::string& conversation,
                       std::int64_t deadline_us) {
  auto batch =
      std::make_shared<WriteBatch>(KeysFrom(keys), data, parent, parents, group, part, put_ids, held);
  std::shared_ptr<Store> store = handle.get();
  auto begin = [&] {
    return store->Write(
        ns.ns, batch->writes(),
        {.ttl_s = ttl_s, .held = held, .conversation = conversation, .deadline_us = deadline_us});
  };
  return BeginCall<WriteResult>(begin, [store, batch](Result<WriteResult> result) -> nb::object {
    const WriteResult written = ValueOf(std::move(result));
    std::string codes, states;
    for (const WriteOutcome& outcome : written.outcomes) {
      codes.push_back(static_cast<char>(outcome.code));
      states.push_back(static_cast<char>(outcome.state));
    }
    return nb::make_tuple(nb::bytes(codes.data(), codes.size()), nb::bytes(states.data(), states.size()),
                          written.message);
  });
}

// ---- counts ---------------------------------------------------------------------------------------------

using PutsCall = Ticket<std::uint32_t> (Store::*)(const Namespace&, std::span<const PutId>, std::int64_t);

template <PutsCall call>
PendingCall BeginPuts(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle put_ids,
                      std::int64_t deadline_us) {
  const std::vector<PutId> ids = PutIdsFrom(put_ids);
  std::shared_ptr<Store> store = handle.get();
  return BeginCall<std::uint32_t>(
      [&] { return (store.get()->*call)(ns.ns, ids, deadline_us); },
      [store](Result<std::uint32_t> result) -> nb::object { return nb::int_(ValueOf(std::move(result))); });
}

nb::object CountAnswer(Result<std::uint32_t> result) { return nb::int_(ValueOf(std::move(result))); }
nb::object BlocksAnswer(Result<std::uint64_t> result) { return nb::int_(ValueOf(std::move(result))); }

PendingCall BeginTouch(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle keys,
                       const std::string& conversation, std::int64_t deadline_us) {
  KeyList list = KeysFrom(keys);
  std::shared_ptr<Store> store = handle.get();
  return BeginCall<std::uint32_t>([&] { return store->Touch(ns.ns, *list, deadline_us, conversation); },
                                  CountAnswer);
}

PendingCall BeginDrop(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle keys,
                      std::int64_t deadline_us) {
  KeyList list = KeysFrom(keys);
  std::shared_ptr<Store> store = handle.get();
  return BeginCall<std::uint64_t>([&] { return store->Drop(ns.ns, *list, deadline_us); }, BlocksAnswer);
}

PendingCall BeginEndConversation(const StoreHandle& handle, const NamespaceHandle& ns,
                                 const std::string& conversation, std::int64_t deadline_us) {
  std::shared_ptr<Store> store = handle.get();
  return BeginCall<std::uint64_t>([&] { return store->EndConversation(ns.ns, conversation, deadline_us); },
                                  BlocksAnswer);
}

nb::object DropNamespace(const StoreHandle& handle, const NamespaceHandle& ns, std::int64_t deadline_us) {
  std::shared_ptr<Store> store = handle.get();
  NamespaceHandle next = ns;
  auto begin = [&] { return store->DropNamespace(next.ns, deadline_us); };
  PendingCall call = BeginCall<std::uint64_t>(
      begin, [](Result<std::uint64_t> result) -> nb::object { return nb::int_(ValueOf(std::move(result))); });
  nb::object blocks = call->Finish();
  return nb::make_tuple(std::move(next), blocks);
}

// ---- for people -----------------------------------------------------------------------------------------

void Put(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle key, nb::handle data,
         nb::handle parent, std::uint32_t ttl_s, std::int64_t deadline_us) {
  const BlockKey block = KeyFrom(key, "key");
  std::optional<BlockKey> below;
  if (!parent.is_none()) below = KeyFrom(parent, "parent");
  HeldBuffer bytes(data, false, {"data"});
  std::shared_ptr<Store> store = handle.get();
  Status status;
  {
    const WithoutGil without;
    status = store->Put(ns.ns, block, below, bytes.bytes(), {.ttl_s = ttl_s, .deadline_us = deadline_us});
  }
  if (!status.ok()) throw StatusError(std::move(status));
}

nb::object Get(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle key,
               std::int64_t deadline_us) {
  const BlockKey block = KeyFrom(key, "key");
  std::shared_ptr<Store> store = handle.get();
  std::optional<Result<std::vector<std::byte>>> bytes;
  {
    const WithoutGil without;
    bytes.emplace(store->Get(ns.ns, block, {.deadline_us = deadline_us}));
  }
  if (!*bytes && bytes->error().code() == Code::kMiss) return nb::none();
  const std::vector<std::byte> got = ValueOf(std::move(*bytes));
  return nb::bytes(got.data(), got.size());
}

// A question about a chain whose answer is JSON.
template <Result<std::string> (Store::*ask)(const Namespace&, std::span<const BlockKey>, std::int64_t)>
nb::object ChainText(const StoreHandle& handle, const NamespaceHandle& ns, nb::handle keys,
                     std::int64_t deadline_us) {
  const KeyList list = KeysFrom(keys);
  std::shared_ptr<Store> store = handle.get();
  std::optional<Result<std::string>> json;
  {
    const WithoutGil without;
    json.emplace(((*store).*ask)(ns.ns, *list, deadline_us));
  }
  return nb::cast(ValueOf(std::move(*json)));
}

nb::object StatusText(const StoreHandle& handle, std::int64_t deadline_us) {
  std::shared_ptr<Store> store = handle.get();
  std::optional<Result<std::string>> json;
  {
    const WithoutGil without;
    json.emplace(store->StatusJson(deadline_us));
  }
  return nb::cast(ValueOf(std::move(*json)));
}

void Report(const StoreHandle& handle, std::uint64_t promised_tokens, std::uint64_t delivered_tokens,
            std::uint64_t saved_us, std::uint64_t spent_us) {
  Status status = handle.get()->Report({.promised_tokens = promised_tokens,
                                        .delivered_tokens = delivered_tokens,
                                        .saved_us = saved_us,
                                        .spent_us = spent_us});
  if (!status.ok()) throw StatusError(std::move(status));
}

nb::bytes Owner(const StoreHandle& handle) {
  const OwnerToken token = handle.get()->owner();
  return nb::bytes(token.data(), token.size());
}

std::vector<std::uint64_t> Poll(const StoreHandle& handle) {
  std::vector<std::uint64_t> ready;
  handle.get()->Poll(&ready);
  return ready;
}

// A call in both its forms.
template <auto begin>
struct Call;
template <class... Args, PendingCall (*begin)(const StoreHandle&, Args...)>
struct Call<begin> {
  static nb::object Wait(const StoreHandle& handle, Args... args) { return begin(handle, args...)->Finish(); }
  static void Define(nb::class_<StoreHandle>& store, const std::string& name, ArgumentNames<Args...> names) {
    python::Define(store, name.c_str(), Wait, names);
    python::Define(store, ("begin_" + name).c_str(), begin, names);
  }
};

}  // namespace

const std::shared_ptr<Store>& StoreHandle::get() const {
  if (store_ == nullptr) Throw(Code::kGone, "this store was closed: connect again");
  return store_;
}

void StoreHandle::Close() {
  std::shared_ptr<Store> last = std::move(store_);
  if (last == nullptr) return;
  const WithoutGil without;
  last.reset();
}

void BindStore(nb::module_& m) {
  nb::class_<PendingPuts>(m, "PendingPuts")
      .def_prop_ro("id", &PendingPuts::id)
      .def("ready", &PendingPuts::Ready)
      .def("finish", &PendingPuts::Finish);
  nb::class_<NamespaceHandle>(m, "Namespace").def_prop_ro("incarnation", [](const NamespaceHandle& handle) {
    return handle.ns.incarnation();
  });
  nb::class_<StoreHandle> store(m, "Store");
  store.def("close", &StoreHandle::Close)
      .def("owner", Owner)
      .def("poll", Poll)
      .def("event_fd", [](const StoreHandle& handle) { return handle.get()->event_fd(); });
  Define(store, "attach", Attach, {"spec", "deadline_us"});
  Define(store, "match", Match, {"namespace", "keys", "hold_us", "max_age_us", "hints", "deadline_us"});
  Define(store, "begin_match", BeginMatch, {"namespace", "keys", "hold_us", "hints", "deadline_us"});
  Define(store, "drop_namespace", DropNamespace, {"namespace", "deadline_us"});
  Define(store, "put", Put, {"namespace", "key", "data", "parent", "ttl_s", "deadline_us"});
  Define(store, "get", Get, {"namespace", "key", "deadline_us"});
  Define(store, "status", StatusText, {"deadline_us"});
  Define(store, "cell_holders", ChainText<&Store::CellHoldersJson>, {"namespace", "chain", "deadline_us"});
  Define(store, "cell_explanation", ChainText<&Store::CellExplanationJson>,
         {"namespace", "chain", "deadline_us"});
  Define(store, "report", Report, {"promised_tokens", "delivered_tokens", "saved_us", "spent_us"});
  Call<BeginAcquire>::Define(store, "acquire",
                             {"namespace", "keys", "group", "lease_us", "deadline_us", "worth_us"});
  Call<BeginRead>::Define(store, "read",
                          {"namespace", "keys", "into", "group", "part", "deadline_us", "worth_us", "touch"});
  Call<BeginWrite>::Define(store, "write",
                           {"namespace", "keys", "data", "parent", "parents", "group", "part", "put_ids",
                            "held", "ttl_s", "conversation", "deadline_us"});
  Call<BeginPuts<&Store::Publish>>::Define(store, "publish", {"namespace", "put_ids", "deadline_us"});
  Call<BeginPuts<&Store::Abandon>>::Define(store, "abandon", {"namespace", "put_ids", "deadline_us"});
  Call<BeginTouch>::Define(store, "touch", {"namespace", "keys", "conversation", "deadline_us"});
  Call<BeginDrop>::Define(store, "drop", {"namespace", "keys", "deadline_us"});
  Call<BeginEndConversation>::Define(store, "end_conversation", {"namespace", "conversation", "deadline_us"});
  Define(m, "connect", Connect,
         {"socket", "tenant", "owner", "staging_bytes", "deadline_us", "node_user", "engine_name"});
  Define(m, "open", Open,
         {"memory_bytes", "memory_dir", "tenant", "alignment", "max_blocks", "movers", "poll_us", "loop",
          "flash", "journal_dir", "flash_write", "flash_admit", "flash_promote", "flash_budget_bytes_a_day",
          "flash_read_ahead_bytes", "discard_foreign", "scrub_bytes_per_s"});
  m.def("default_socket_path", wire::DefaultSocketPath);
  m.def("own_socket_directory", wire::OwnSocketDirectory);
}

}  // namespace cistern::python
