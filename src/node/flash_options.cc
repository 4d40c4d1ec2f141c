// SPDX-License-Identifier: Apache-2.0
#include "node/flash_options.h"

#include <string>
#include <utility>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "flash/flash_tier.h"

namespace cistern {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

Result<std::uint64_t> ParseRate(std::string_view name, std::string_view text, std::string_view per,
                                std::string_view example) {
  if (text.ends_with(per)) return ParseSize(name, text.substr(0, text.size() - per.size()));
  return Error(Code::kInvalid,
               Text(name, ": \"", Shown(text), "\" is not a size and ", per, "; write it as in ", example));
}

}  // namespace

Status AddFlashVolume(std::string_view name, std::string_view text, std::vector<FlashVolume>& volumes) {
  FlashVolume volume{.path = std::string(text)};
  const std::size_t colon = text.rfind(':');
  if (colon != std::string_view::npos && colon + 1 < text.size() && IsDigit(text[colon + 1])) {
    Result<std::uint64_t> size = ParseSize(name, text.substr(colon + 1));
    if (!size) return size.error();
    volume.path = text.substr(0, colon);
    volume.size_bytes = *size;
    if (*size == 0) {
      return Status(Code::kInvalid, Text(name, ": ", Shown(text), " has a size of zero; say how much, as in ",
                                         Shown(volume.path), ":100GiB"));
    }
  }
  if (volume.path.empty()) {
    return Status(Code::kInvalid, Text(name, ": \"", Shown(text), "\" names no directory or block device; ",
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

Result<std::uint64_t> ParseScrubRate(std::string_view name, std::string_view text) {
  if (text == "0") return 0u;
  return ParseRate(name, text, "/s", "8MiB/s, or 0 for never");
}

Status ParseFlashWrite(std::string_view name, std::string_view text, LowerWish& wish) {
  Status status = ReadWrite(text, wish);
  return status.ok() ? status : Status(status.code(), Text(name, ": ", status.message()));
}

Status ParseFlashAdmit(std::string_view name, std::string_view text, LowerWish& wish) {
  Status status = ReadAdmit(text, wish);
  return status.ok() ? status : Status(status.code(), Text(name, ": ", status.message()));
}

Result<Promotion> ParseFlashPromote(std::string_view name, std::string_view text) {
  Result<Promotion> promote = ReadPromotion(text);
  return promote ? promote : Error(promote.error().code(), Text(name, ": ", promote.error().message()));
}

Result<LowerPolicy> LowerPolicyOf(const OpenOptions& options) {
  LowerWish wish;
  Status status = ParseFlashWrite("flash_write", options.flash_write, wish);
  if (status.ok()) status = ParseFlashAdmit("flash_admit", options.flash_admit, wish);
  if (!status.ok()) return Error(std::move(status));
  Result<Promotion> promote = ParseFlashPromote("flash_promote", options.flash_promote);
  if (!promote) return Error(std::move(promote.error()));
  return wish.Over(LowerPolicy{.promote = *promote});
}

Status CheckFlashOptions(const OpenOptions& options) {
  if (Result<LowerPolicy> policy = LowerPolicyOf(options); !policy) return policy.error();
  if (options.flash.size() > kMaxFlashDevices) {
    return Status(Code::kInvalid, Text("flash: ", options.flash.size(), " volumes, the limit is ",
                                       kMaxFlashDevices, "; join some of them below the file system"));
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

}  // namespace cistern
