// SPDX-License-Identifier: Apache-2.0
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdio>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "commands.h"
#include "prompt.h"

namespace cistern {
namespace {

namespace json = boost::json;

constexpr std::string_view kName = "cistern device";
constexpr std::string_view kActions[] = {"list", "take-out", "bring-back"};

// The array flash.devices of the node's status.
Result<json::array> Devices(Store& store, std::int64_t deadline_us) {
  Result<std::string> status = store.StatusJson(deadline_us);
  if (!status) return Error(status.error());
  boost::system::error_code error;
  const json::value value = json::parse(*status, error);
  const json::value* devices = error ? nullptr : value.find_pointer("/flash/devices", error);
  if (devices == nullptr || !devices->is_array()) {
    return Error(Code::kMismatch, "the node's status has no flash; is it of an earlier version?");
  }
  return devices->get_array();
}

std::string TextOf(const json::object& device, std::string_view field) {
  const json::value* value = device.if_contains(field);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

std::uint64_t NumberOf(const json::object& device, std::string_view field) {
  const json::value* value = device.if_contains(field);
  return value != nullptr && value->is_number() ? value->to_number<std::uint64_t>() : 0;
}

void Print(const json::array& devices) {
  if (devices.empty()) std::printf("no flash: start the node with --flash\n");
  for (const json::value& value : devices) {
    const json::object& device = value.as_object();
    const json::value* in_service = device.if_contains("in_service");
    const bool in = in_service != nullptr && in_service->is_bool() && in_service->get_bool();
    std::printf("%-40s %-14s %10s  read %10s  written %10s  %llu errors%s%s\n",
                TextOf(device, "path").c_str(), in ? "in service" : "out of service",
                RoughSizeText(NumberOf(device, "bytes")).c_str(),
                RoughSizeText(NumberOf(device, "read_bytes")).c_str(),
                RoughSizeText(NumberOf(device, "written_bytes")).c_str(),
                static_cast<unsigned long long>(NumberOf(device, "errors")), in ? "" : "\n    ",
                TextOf(device, "why").c_str());
  }
}

Status Check(const std::string& action, const std::string& path) {
  bool known = false;
  for (const std::string_view one : kActions) known = known || one == action;
  if (!known) return Status(Code::kInvalid, UnknownName("action", action, kActions));
  if (action == "list" ? path.empty() : !path.empty()) return Status();
  return Status(Code::kInvalid, action == "list"
                                    ? Text("list takes no path, and ", ShownPath(path), " is one")
                                    : Text(action,
                                           ": which device? Give its path, as `cistern "
                                           "device list` shows it"));
}

}  // namespace

int RunDevice(int argc, const char* const* argv) {
  Prompt prompt;
  std::string action, path;
  CommandLine line(
      kName,
      "The devices of a node's flash: list them, take one out of service (what only it has is lost), or\n"
      "bring one back that failed or was taken out (it is formatted anew).",
      "  cistern device list\n  cistern device take-out /mnt/nvme0\n"
      "  cistern device bring-back /mnt/nvme0");
  prompt.AddTo(line, false);
  line.Argument("ACTION", "list, take-out or bring-back", &action);
  line.Argument("PATH", "of the device, as the node was given it or as list shows it", &path, false);
  if (auto exit = line.Parse(argc, argv)) return *exit;
  if (Status status = Check(action, path); !status.ok()) return Complain(kName, status);
  Result<Store> store = Store::Connect(prompt.connect);
  if (!store) return Complain(kName, store.error());
  const auto deadline_us = static_cast<std::int64_t>(prompt.deadline_us);
  Status changed;
  if (action == "take-out") changed = store->TakeOutDevice(path, deadline_us);
  if (action == "bring-back") changed = store->BringBackDevice(path, deadline_us);
  if (!changed.ok()) return Complain(kName, changed);
  Result<json::array> devices = Devices(*store, deadline_us);
  if (!devices) return Complain(kName, devices.error());
  if (prompt.json) {
    const json::object all{{"devices", std::move(*devices)}};
    std::printf("%s\n", json::serialize(all).c_str());
  } else {
    Print(*devices);
  }
  return kExitOk;
}

}  // namespace cistern
