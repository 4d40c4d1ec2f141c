// SPDX-License-Identifier: Apache-2.0
#include "flash_place.h"

#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/format.h"

namespace cistern {

std::string FlashFileIn(const std::string& directory) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory, ignored)) {
    if (entry.is_regular_file(ignored) && entry.path().filename() == "flash") return entry.path().string();
  }
  return {};
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
    if (*has >= *wanted) return Status();
    if (waited_ms >= kLongestMs)
      return Status(Code::kBusy, Text("the node has ", *has, " of ", *wanted, " bytes of memory after 60 s"));
    std::this_thread::sleep_for(std::chrono::milliseconds(static_cast<int>(kStepMs)));
  }
}

Status AwaitWritten(Store& store) {
  for (double before = -1;;) {
    const auto now = StatusNumber(store, {"flash", "written_bytes"});
    if (!now) return now.error();
    if (*now == before) return Status();
    before = *now;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

Result<FilledBlocks> FillDown(Store& store, std::size_t count, std::uint64_t block_bytes,
                              std::size_t chain_blocks) {
  const std::size_t behind = (64u << 20) / block_bytes;
  return Fill(store, count, block_bytes, chain_blocks, [&](std::size_t filled) -> Status {
    for (;;) {
      const auto written = StatusNumber(store, {"store", "written_down"});
      if (!written) return written.error();
      if (*written + static_cast<double>(behind) >= static_cast<double>(filled)) return Status();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

}  // namespace cistern
