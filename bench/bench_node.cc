// SPDX-License-Identifier: Apache-2.0
#include "bench_node.h"

#include <boost/json.hpp>
#include <chrono>
#include <thread>
#include <utility>

#include "base/format.h"

namespace cistern {

Result<Daemon> StartNode(const BenchOptions& options, std::vector<std::string> flags) {
  Result<Daemon> daemon = Daemon::Start(options.daemon, options.memory_dir, std::move(flags));
  if (!daemon) return daemon;
  Result<Store> store = daemon->Connect();
  if (!store) return Error(store.error());
  if (Status grown = AwaitMemory(*store); !grown.ok()) return Error(grown);
  return daemon;
}

Result<double> StatusNumber(Store& store, std::initializer_list<std::string_view> names) {
  auto text = store.StatusJson();
  if (!text) return Error(std::move(text.error()));
  boost::json::value value = boost::json::parse(*text);
  for (const std::string_view name : names) {
    const auto* object = value.if_object();
    const auto* found = object == nullptr ? nullptr : object->if_contains(name);
    if (found == nullptr) return Error(Code::kMismatch, Text("status has no ", name));
    boost::json::value next = *found;
    value = std::move(next);
  }
  return value.to_number<double>();
}

Status AwaitMemory(Store& store) {
  constexpr double kLongestMs = 60'000, kStepMs = 10;
  for (double waited_ms = 0;; waited_ms += kStepMs) {
    const auto has = StatusNumber(store, {"memory", "bytes"});
    const auto wanted = StatusNumber(store, {"memory", "wanted_bytes"});
    if (!has) return has.error();
    if (!wanted) return wanted.error();
    const auto prepared = StatusNumber(store, {"memory", "prepared_bytes"});
    if (!prepared) return prepared.error();
    if (*has >= *wanted && *prepared >= *wanted) return Status();
    if (waited_ms >= kLongestMs)
      return Status(Code::kBusy, Text("after 60 s the node has ", *has, " bytes of memory, ", *prepared,
                                      " of them prepared, of ", *wanted));
    std::this_thread::sleep_for(std::chrono::milliseconds(static_cast<int>(kStepMs)));
  }
}

}  // namespace cistern
