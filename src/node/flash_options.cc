// SPDX-License-Identifier: Apache-2.0
#include "node/flash_options.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "base/format.h"
#include "base/nearest.h"
#include "base/policy.h"
#include "base/units.h"
#include "flash/flash_tier.h"

namespace cistern::node {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Begins as a size does, and has nothing that no size has: /dev/disk/by-path has colons before digits too.
bool IsMeantAsSize(std::string_view text) {
  return !text.empty() && IsDigit(text.front()) && text.find_first_of("-_/:") == std::string_view::npos;
}

Result<std::uint64_t> ParseRate(std::string_view name, std::string_view text, std::string_view per,
                                std::string_view example) {
  if (text.ends_with(per)) return ParseSize(name, text.substr(0, text.size() - per.size()));
  return Error(Code::kInvalid,
               Text(name, ": \"", Shown(text), "\" is not a size and ", per, "; write it as in ", example));
}

Status CheckPolicies(const OpenOptions& options) {
  const std::pair<std::string_view, Status> checked[] = {
      {"flash_write", CheckPolicy(options.flash_write)},
      {"flash_admit", CheckPolicy(options.flash_admit)},
      {"flash_promote", CheckPolicy(options.flash_promote)}};
  for (const auto& [name, status] : checked) {
    if (!status.ok()) return Status(status.code(), Text(name, ": ", status.message()));
  }
  return Status();
}

// Who lost the line that names flash is told.
Status CheckWithoutFlash(const OpenOptions& options) {
  const OpenOptions none;
  const std::pair<std::string_view, bool> given[] = {
      {"flash_write", options.flash_write != none.flash_write},
      {"flash_admit", options.flash_admit != none.flash_admit},
      {"flash_promote", options.flash_promote != none.flash_promote},
      {"flash_budget", options.flash_budget_bytes_a_day != none.flash_budget_bytes_a_day},
      {"flash_read_ahead", options.flash_read_ahead_bytes != none.flash_read_ahead_bytes},
      {"discard_foreign", options.discard_foreign}};
  for (const auto& [name, is_given] : given) {
    if (is_given) {
      return Status(Code::kInvalid,
                    Text(name, ": is of flash, and none is given beside it; give some (flash), or leave ",
                         name, " out"));
    }
  }
  return Status();
}

}  // namespace

Status AddFlashVolume(std::string_view name, std::string_view text, std::vector<FlashVolume>& volumes) {
  FlashVolume volume{.path = std::string(text)};
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && IsMeantAsSize(text.substr(colon + 1))) {
    Result<std::uint64_t> size = ParseSize(name, text.substr(colon + 1));
    // Paths of SCSI and virtio disks below /dev/disk/by-path end as a size without its unit does.
    if (!size && ::access(volume.path.c_str(), F_OK) != 0) return size.error();
    if (size) {
      volume.path = text.substr(0, colon);
      volume.size_bytes = *size;
    }
    if (size && *size == 0) {
      return Status(Code::kInvalid,
                    Text(name, ": ", ShownPath(text), " has a size of zero; say how much, as in ",
                         ShownPath(volume.path), ":100GiB"));
    }
  }
  if (volume.path.empty()) {
    return Status(Code::kInvalid,
                  Text(name, ": \"", ShownPath(text), "\" names no directory or block device; ",
                       "write PATH:SIZE, as in /mnt/nvme:100GiB"));
  }
  volumes.push_back(std::move(volume));
  return Status();
}

Result<std::uint64_t> ParseBudget(std::string_view name, std::string_view text) {
  Result<std::uint64_t> budget =
      text == "0" ? Result<std::uint64_t>(0u) : ParseRate(name, text, "/day", "500GiB/day");
  if (budget && *budget == 0) {
    return Error(Code::kInvalid,
                 Text(name, ": with a budget of zero nothing would ever be written to flash; ",
                      "leave it out for no limit, or give one, as in 500GiB/day"));
  }
  return budget;
}

Result<std::uint64_t> ParseBytesASecond(std::string_view name, std::string_view text, std::string_view zero) {
  if (text == "0") return 0u;
  return ParseRate(name, text, "/s", Text("8MiB/s, or 0 for ", zero));
}

Status CheckFlashOptions(const OpenOptions& options) {
  if (Status status = CheckPolicies(options); !status.ok()) return status;
  if (options.flash.empty()) return CheckWithoutFlash(options);
  if (options.flash.size() > flash::kMaxFlashDevices) {
    return Status(Code::kInvalid, Text("flash: ", options.flash.size(), " volumes, the limit is ",
                                       flash::kMaxFlashDevices, "; join some of them below the file system"));
  }
  for (std::size_t i = 0; i < options.flash.size(); ++i) {
    const std::string& path = options.flash[i].path;
    if (path.empty()) {
      return Status(Code::kInvalid,
                    Text("flash: volume ", i + 1, " has no path; name a directory or a block device"));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (options.flash[j].path == path) {
        return Status(Code::kInvalid, Text("flash: ", path, " is named twice; name each once"));
      }
    }
  }
  return Status();
}

}  // namespace cistern::node
