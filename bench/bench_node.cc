// SPDX-License-Identifier: Apache-2.0
#include "bench_node.h"

#include <boost/json.hpp>
#include <chrono>
#include <thread>
#include <utility>

#include "base/format.h"

namespace cistern {
namespace {

using Names = std::initializer_list<std::string_view>;

// Of one status.
Result<std::vector<double>> StatusNumbers(Store& store, std::initializer_list<Names> wanted) {
  auto text = store.StatusJson();
  if (!text) return Error(std::move(text.error()));
  const boost::json::value status = boost::json::parse(*text);
  std::vector<double> numbers;
  for (const Names names : wanted) {
    const boost::json::value* value = &status;
    for (const std::string_view name : names) {
      const auto* object = value->if_object();
      value = object == nullptr ? nullptr : object->if_contains(name);
      if (value == nullptr) return Error(Code::kMismatch, Text("status has no ", name));
    }
    numbers.push_back(value->to_number<double>());
  }
  return numbers;
}

}  // namespace

Result<Daemon> StartNode(const BenchOptions& options, std::vector<std::string> flags) {
  Result<Daemon> daemon = Daemon::Start(options.daemon, options.memory_dir, std::move(flags));
  if (!daemon) return daemon;
  Result<Store> store = daemon->Connect();
  if (!store) return Error(store.error());
  if (Status grown = AwaitMemory(*store); !grown.ok()) return Error(grown);
  return daemon;
}

Result<double> StatusNumber(Store& store, std::initializer_list<std::string_view> names) {
  const auto numbers = StatusNumbers(store, {names});
  if (!numbers) return Error(numbers.error());
  return numbers->front();
}

Status AwaitMemory(Store& store) {
  constexpr double kLongestMs = 60'000, kStepMs = 10;
  for (double waited_ms = 0;; waited_ms += kStepMs) {
    const auto memory =
        StatusNumbers(store, {{"memory", "bytes"}, {"memory", "prepared_bytes"}, {"memory", "wanted_bytes"}});
    if (!memory) return memory.error();
    const double has = (*memory)[0], prepared = (*memory)[1], wanted = (*memory)[2];
    if (has >= wanted && prepared >= wanted) return Status();
    if (waited_ms >= kLongestMs)
      return Status(Code::kBusy, Text("after 60 s the node has ", has, " bytes of memory, ", prepared,
                                      " of them prepared, of ", wanted));
    std::this_thread::sleep_for(std::chrono::milliseconds(static_cast<int>(kStepMs)));
  }
}

}  // namespace cistern
