// SPDX-License-Identifier: Apache-2.0
#include "keys.h"

#include <cstring>
#include <utility>

#include "arguments.h"
#include "base/format.h"
#include "buffers.h"
#include "errors.h"

namespace cistern::python {
namespace {

std::span<const std::byte> BytesIn(nb::handle object, const ArgumentName& name) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (!PyBytes_Check(object.ptr()) || PyBytes_AsStringAndSize(object.ptr(), &data, &size) != 0)
    Throw(Code::kInvalid,
          Text(name.text(), " is of type ", nb::type_name(object.type()).c_str(), ", bytes are needed"));
  return std::as_bytes(std::span(data, static_cast<std::size_t>(size)));
}

BlockKey KeyIn(nb::handle object, const ArgumentName& name) {
  Result<BlockKey> key = BlockKey::FromBytes(BytesIn(object, name));
  if (!key) Throw(key.error().code(), Text(name.text(), ": ", key.error().message()));
  return *key;
}

// Calls `each(item, place)`, which runs no Python code, for a list or tuple at once, for another sequence by
// the way of a tuple.
template <class Each>
std::size_t ForEach(nb::handle sequence, std::string_view name, Each each) {
  nb::object fast = PyList_CheckExact(sequence.ptr()) ? nb::borrow(sequence) : SequenceOf(sequence, {name});
  const auto count = static_cast<std::size_t>(PySequence_Fast_GET_SIZE(fast.ptr()));
  PyObject** items = PySequence_Fast_ITEMS(fast.ptr());
  for (std::size_t i = 0; i < count; ++i) each(nb::handle(items[i]), i, count);
  return count;
}

}  // namespace

BlockKey KeyFrom(nb::handle key, std::string_view name, std::ptrdiff_t at) {
  return KeyIn(key, ArgumentName{name, at});
}

nb::bytes BytesOf(const BlockKey& key) { return nb::bytes(key.bytes.data(), key.length); }

std::vector<BlockKey>& Chain::Own(std::size_t more) {
  if (keys_.use_count() > 1) keys_ = std::make_shared<std::vector<BlockKey>>(*keys_);
  // An answer that ended before the old end stays right.
  if (more > 0 && remembered && remembered->blocks == keys_->size()) remembered.reset();
  return *keys_;
}

void Chain::Extend(nb::handle keys) {
  std::vector<BlockKey> added;
  ForEach(keys, "keys", [&](nb::handle item, std::size_t at, std::size_t count) {
    if (at == 0) added.reserve(count);
    added.push_back(KeyFrom(item, "keys", static_cast<std::ptrdiff_t>(at)));
  });
  std::vector<BlockKey>& own = Own(added.size());
  own.insert(own.end(), added.begin(), added.end());
}

void Chain::ExtendBuffer(nb::handle keys, std::size_t key_bytes) {
  if (key_bytes < BlockKey::kMinBytes || key_bytes > BlockKey::kMaxBytes)
    Throw(Code::kInvalid, Text("key_bytes is ", key_bytes, ", a key has 1 to ", BlockKey::kMaxBytes));
  HeldBuffer held(keys, false, {"keys"});
  std::span<const std::byte> bytes = held.bytes();
  if (bytes.size() % key_bytes != 0)
    Throw(Code::kInvalid,
          Text("keys has ", bytes.size(), " bytes, which is no multiple of key_bytes ", key_bytes));
  std::vector<BlockKey>& own = Own(bytes.size());
  own.reserve(own.size() + bytes.size() / key_bytes);
  for (; !bytes.empty(); bytes = bytes.subspan(key_bytes))
    own.push_back(*BlockKey::FromBytes(bytes.first(key_bytes)));
}

KeyList KeysFrom(nb::handle keys) {
  if (Chain* chain = nullptr; nb::try_cast<Chain*>(keys, chain) && chain != nullptr) return chain->keys();
  auto list = std::make_shared<std::vector<BlockKey>>();
  ForEach(keys, "keys", [&](nb::handle item, std::size_t at, std::size_t count) {
    if (at == 0) list->reserve(count);
    list->push_back(KeyFrom(item, "keys", static_cast<std::ptrdiff_t>(at)));
  });
  return list;
}

std::vector<std::optional<BlockKey>> ParentsFrom(std::span<const BlockKey> keys, nb::handle parent,
                                                 nb::handle parents) {
  std::vector<std::optional<BlockKey>> all;
  all.reserve(keys.size());
  if (parents.is_none()) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (i > 0)
        all.push_back(keys[i - 1]);
      else
        all.push_back(parent.is_none() ? std::nullopt : std::optional(KeyFrom(parent, "parent")));
    }
    return all;
  }
  if (!parent.is_none())
    Throw(Code::kInvalid, "both parent and parents are given: parent is of the first key of a chain");
  ForEach(parents, "parents", [&](nb::handle item, std::size_t at, std::size_t) {
    all.push_back(item.is_none() ? std::nullopt
                                 : std::optional(KeyFrom(item, "parents", static_cast<std::ptrdiff_t>(at))));
  });
  if (all.size() != keys.size())
    Throw(Code::kInvalid, Text(all.size(), " parents for ", keys.size(), " keys: one a key is needed"));
  return all;
}

std::vector<PutId> PutIdsFrom(nb::handle ids, std::optional<std::size_t> count) {
  std::vector<PutId> all;
  ForEach(ids, "put_ids", [&](nb::handle item, std::size_t at, std::size_t) {
    const ArgumentName name{"put_ids", static_cast<std::ptrdiff_t>(at)};
    std::span<const std::byte> bytes = BytesIn(item, name);
    PutId id;
    if (bytes.size() != sizeof(id))
      Throw(Code::kInvalid, Text(name.text(), " has ", bytes.size(), " bytes, a put id has ", sizeof(id)));
    std::memcpy(&id, bytes.data(), sizeof(id));
    if (id == PutId{}) Throw(Code::kInvalid, Text(name.text(), " is all zero: see new_put_id()"));
    all.push_back(id);
  });
  if (count && all.size() != *count)
    Throw(Code::kInvalid, Text(all.size(), " put_ids for ", *count, " keys: one a key is needed"));
  return all;
}

void BindKeys(nb::module_& m) {
  nb::class_<Chain> bound(m, "Chain");
  bound.def(nb::init<>())
      .def("extend", &Chain::Extend, nb::arg("keys"))
      .def(
          "key",
          [](const Chain& chain, std::size_t at) {
            if (at >= chain.keys()->size()) throw nb::index_error();
            return BytesOf((*chain.keys())[at]);
          },
          nb::arg("at"))
      .def("__len__", [](const Chain& chain) { return chain.keys()->size(); });
  Define(bound, "extend_buffer", &Chain::ExtendBuffer, {"keys", "key_bytes"});
}

}  // namespace cistern::python
