// SPDX-License-Identifier: Apache-2.0
#include "flash/open.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/event.h"
#include "base/format.h"
#include "base/limits.h"
#include "base/units.h"
#include "flash/format.h"

namespace cistern::flash {

namespace {

constexpr std::uint64_t kProbeBytes = 1u << 20;
constexpr std::uint32_t kMinRegions = 4;
constexpr std::int64_t kLockTryUs = 10'000;
// The memory's directory and the journal's have locks too.
static_assert(kMaxFlashDevices + 2 <= io::Loop::kMaxLocks);

Status Named(const std::string& path, const Status& status) {
  return Status(status.code(), Text("flash device ", path, ": ", status.message()));
}

}  // namespace

Status CheckAlignment(const io::DirectLimits& limits, std::uint32_t unit, const std::string& path) {
  const std::uint32_t needs = std::max(limits.memory_align, limits.offset_align);
  if (needs != 0 && unit % needs == 0) return Status();
  const std::string needed = Text("flash device ", path, ": needs transfers aligned to ", needs, " bytes");
  if (needs > kMaxAlignment) {
    return Status(Code::kInvalid, Text(needed, " and an arena's alignment is ", kMaxAlignment,
                                       " at most; take a file system of smaller blocks, or a block device"));
  }
  return Status(Code::kInvalid, Text(needed, " and the arena's alignment is ", unit, "; set it to ", needs,
                                     " (an arena that is there keeps its own until `cistern forget`) or take "
                                     "another device"));
}

Status CheckBytes(const std::string& path, std::uint64_t bytes, std::uint64_t region_bytes,
                  std::optional<std::uint64_t> block_device_bytes) {
  const std::string size = Text("flash device ", path, ": size is ", SizeText(bytes));
  const std::uint64_t least = kSuperBytes + kMinRegions * region_bytes;
  if (bytes < least)
    return Status(Code::kInvalid, Text(size, " and must be at least ", SizeText(least), " (", kMinRegions,
                                       " regions of ", SizeText(region_bytes), ")"));
  if (block_device_bytes && bytes > *block_device_bytes)
    return Status(Code::kInvalid, Text(size, " and the device has ", SizeText(*block_device_bytes)));
  return Status();
}

Task<Status> DeviceOpener::Lock(io::File& file, const std::string& path) {
  const Instant until = media_.Now().PlusUs(kLockWaitUs);
  for (;;) {
    const Status status = media_.loop().Lock(file);
    if (status.code() != Code::kBusy) co_return status.ok() ? Status() : Named(path, status);
    if (media_.Now() >= until) {
      co_return Status(Code::kBusy, Text("flash device ", path,
                                         ": another node uses it, or a request of one "
                                         "that was killed has not ended in ",
                                         kLockWaitUs / 1000, " ms: ", status.message()));
    }
    co_await SleepUntil(media_.Now().PlusUs(kLockTryUs));
  }
}

Status DeviceOpener::CheckLimits(const io::File& file, const std::string& path) const {
  const auto limits = file.Direct();
  return limits ? CheckAlignment(*limits, media_.unit(), path) : Named(path, limits.error());
}

Task<Result<DeviceOpener::ProbeResult>> DeviceOpener::Probe(std::size_t at) {
  const FlashDeviceOptions& device = media_.options().devices[at];
  Device& looked_at = media_.devices()[at]->device();
  ProbeResult probe;
  probe.file_path = device.path + "/flash";
  auto file = media_.loop().Open(probe.file_path, io::OpenMode::kDirect);
  if (!file) {
    auto whole = media_.loop().Open(device.path, io::OpenMode::kDirect);
    if (!whole) {
      probe.absent = std::move(file.error());  // if it cannot be made, making it says why
      co_return probe;
    }
    const auto limits = whole->Direct();
    if (!limits || !limits->block_device) {
      co_return Error(Code::kInvalid,
                      Text("flash device ", device.path, ": is neither a directory nor a block device"));
    }
    probe.file_path = device.path;
    probe.block_device = true;
    file = std::move(whole);
  }
  const auto size = file->Size();
  if (!size) co_return Error(Named(device.path, size.error()));
  probe.size_bytes = probe.found_bytes = *size;
  Status status = co_await Lock(*file, device.path);
  // A node that has had devices before may be the successor of the one whose request has not ended (R8). One
  // that starts for the first time has named another node's device.
  if (status.code() == Code::kBusy && !journal_.known.empty()) {
    probe.left_out = std::move(status);
    co_return probe;
  }
  if (status.ok()) status = CheckLimits(*file, device.path);
  if (!status.ok()) co_return std::unexpected(std::move(status));
  looked_at.Begin(std::move(*file));
  co_return co_await ReadSuperblock(at, std::move(probe));
}

Task<Result<DeviceOpener::ProbeResult>> DeviceOpener::ReadSuperblock(std::size_t at, ProbeResult probe) {
  const std::string& path = media_.options().devices[at].path;
  Device& device = media_.devices()[at]->device();
  Buffer buffer = media_.pool().Take(kProbeBytes);
  const auto bytes = buffer.bytes().first(std::min<std::uint64_t>(probe.size_bytes, kProbeBytes) /
                                          media_.unit() * media_.unit());
  Status status;
  if (!bytes.empty()) status = co_await device.Read(buffer, bytes.size(), 0);
  if (!status.ok()) {
    if (!device.out() && journal_.known.empty()) co_return Error(Named(path, status));
    device.FailedFor("its superblock cannot be read", status);
    co_return LeftOut(at, std::move(probe));
  }
  const auto superblock = DecodeSuperblock(bytes);
  if (superblock) {
    probe.superblock = *superblock;
    bool used = false;
    if (superblock->journal_id != journal_.id && !media_.options().discard_foreign)
      used = co_await Used(device, *superblock, probe.size_bytes);
    if (device.out()) co_return LeftOut(at, std::move(probe));
    if (used) {
      co_return Error(
          Code::kMismatch,
          Text("flash device ", path, ": holds the cache of another node, or of this one with ",
               "another journal; nothing was touched. Start with the --journal-dir and --tenant that it "
               "was used with (without one the journal is on the first --flash directory), or take another "
               "place; where that journal is gone with its drive, nothing tells any more what was dropped: "
               "discard what is here (--discard-foreign)"));
    }
  } else if (!AllZero(bytes)) {
    probe.foreign = true;
    if (!media_.options().discard_foreign) {
      const bool version = superblock.error() == FlashFault::kVersion;
      co_return Error(Code::kMismatch,
                      Text("flash device ", path, ": ",
                           version ? "its format is another version than this node's"
                           : superblock.error() == FlashFault::kCrc ? "its superblock is damaged"
                                                                    : "holds data that is not Cistern's",
                           "; nothing was touched. Take another place, or discard what it holds "
                           "(--discard-foreign)"));
    }
  }
  co_return probe;
}

DeviceOpener::ProbeResult DeviceOpener::LeftOut(std::size_t at, ProbeResult probe) const {
  const Device& device = media_.devices()[at]->device();
  probe.left_out = Status(Code::kIoError, Text("flash device ", device.path(), ": ", device.why()));
  probe.superblock.reset();
  return probe;
}

// Whether any region was ever opened since the device was formatted. A first start that was cut off leaves
// one that was not, under a journal that nobody has.
Task<bool> DeviceOpener::Used(Device& device, const Superblock& superblock, std::uint64_t size_bytes) {
  Buffer buffer = media_.pool().Take(media_.unit());
  const auto unit = buffer.bytes().first(media_.unit());
  for (std::uint32_t i = 0; i < superblock.regions; ++i) {
    const std::uint64_t at = kSuperBytes + i * superblock.region_bytes;
    if (at % media_.unit() != 0 || at + unit.size() > size_bytes) co_return true;
    // What cannot be read may be anything.
    if (const Status status = co_await device.Read(buffer, unit.size(), at); !status.ok()) co_return true;
    const auto header = DecodeRegionHeader(unit);
    if (header && header->device_id == superblock.device_id && header->epoch != 0) co_return true;
  }
  co_return false;
}

std::uint64_t DeviceOpener::WantedBytes(std::size_t at, const ProbeResult& probe) const {
  const std::uint64_t option = media_.options().devices[at].size_bytes;
  return option == 0 && probe.block_device ? probe.size_bytes : option;
}

DeviceOpener::ProbeResult DeviceOpener::Absent(std::size_t at) const {
  const FlashDeviceOptions& device = media_.options().devices[at];
  ProbeResult probe;
  probe.left_out = Status(Code::kIoError, Text("flash device ", device.path, ": ", device.absent.message()));
  return probe;
}

// As those are formatted that are believed otherwise; else by their size.
void DeviceOpener::ChooseRegionBytes(const std::vector<ProbeResult>& probes) {
  std::uint64_t bytes = media_.options().region_bytes;
  std::uint64_t smallest = UINT64_MAX;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    if (const std::uint64_t wanted = WantedBytes(i, probes[i]); wanted > 0)
      smallest = std::min(smallest, wanted);
    const auto& superblock = probes[i].superblock;
    std::string why;
    if (bytes == 0 && superblock && superblock->region_bytes >= kMinRegionBytes &&
        superblock->region_bytes <= kMaxRegionBytes && superblock->region_bytes % kSuperBytes == 0 &&
        IsOurs(*superblock, &why)) {
      bytes = superblock->region_bytes;
    }
  }
  media_.SetRegionBytes(bytes != 0 ? bytes : RegionBytesFor(smallest));
}

Status DeviceOpener::CheckProbe(std::size_t at, const ProbeResult& probe) const {
  if (!probe.left_out.ok() && WantedBytes(at, probe) == 0) return Status();
  return CheckBytes(media_.options().devices[at].path, WantedBytes(at, probe), media_.geometry().region_bytes,
                    probe.block_device ? std::optional(probe.size_bytes) : std::nullopt);
}

bool DeviceOpener::IsOurs(const Superblock& superblock, std::string* why) const {
  if (superblock.journal_id != journal_.id) {
    *why = "it belonged to another store";
  } else if (journal_.missed_drops) {
    *why = "a node ran without it meanwhile, and may have dropped what it holds";
  } else if (newest_mark_ > journal_.mark) {
    *why = "the journal is an older copy than the one it was used with last, and may lack drops";
  } else if (std::ranges::find(journal_.known, superblock.device_id) == journal_.known.end()) {
    *why = "the journal does not know it";
  } else if (superblock.unit != media_.unit()) {
    *why = Text("its unit is ", superblock.unit, " bytes and the arena's alignment is ", media_.unit());
  } else {
    return true;
  }
  return false;
}

bool DeviceOpener::Believed(const Superblock& superblock, std::string* why) const {
  if (!IsOurs(superblock, why)) return false;
  if (superblock.region_bytes == media_.geometry().region_bytes) return true;
  *why = Text("its regions have ", superblock.region_bytes, " bytes and those of this tier ",
              media_.geometry().region_bytes);
  return false;
}

// The file exists with all its bytes; where that fails it is removed again, unless another node has it.
Task<Status> DeviceOpener::Create(std::size_t at, ProbeResult& probe) {
  if (!probe.left_out.ok()) co_return Status();
  Device& device = media_.devices()[at]->device();
  const std::string& path = media_.options().devices[at].path;
  const std::uint64_t wanted = WantedBytes(at, probe);
  if (!probe.absent.ok()) {
    auto made = media_.loop().Open(probe.file_path, io::OpenMode::kDirectCreateNew);
    if (!made) {
      Status failed(Code::kIoError,
                    Text("flash device ", path, ": its file cannot be opened (", probe.absent.message(),
                         "), nor made (", made.error().message(), ")"));
      if (journal_.known.empty()) co_return failed;
      probe.left_out = std::move(failed);
      co_return Status();
    }
    Status status = co_await Lock(*made, path);
    if (!status.ok()) co_return status;
    status = CheckLimits(*made, path);
    if (status.ok()) status = co_await Preallocate(*made, wanted);
    if (!status.ok()) {
      (void)media_.loop().Remove(probe.file_path);
      co_return Named(path, status);
    }
    probe.made = true;
    device.Begin(std::move(*made));
    status = co_await media_.loop().SyncDirectory(path);
    if (!status.ok()) co_return Named(path, status);
    probe.size_bytes = wanted;
  } else if (!probe.block_device && probe.size_bytes < wanted) {
    const Status status = co_await Preallocate(device.file(), wanted);
    if (!status.ok()) co_return Named(path, status);
    probe.size_bytes = wanted;
  }
  co_return Status();
}

Task<Status> DeviceOpener::Preallocate(io::File& file, std::uint64_t bytes) {
  if (!media_.parts().beside) co_return media_.loop().Preallocate(file, bytes);
  co_return co_await media_.parts().beside(
      [this, &file, bytes] { return media_.loop().Preallocate(file, bytes); });
}

Task<Status> DeviceOpener::WriteSuperblock(DeviceRegions& device, std::uint64_t id) {
  Buffer buffer = media_.pool().Take(media_.unit());
  const auto unit = buffer.bytes().first(media_.unit());
  EncodeSuperblock({.device_id = id,
                    .journal_id = journal_.id,
                    .unit = media_.unit(),
                    .region_bytes = media_.geometry().region_bytes,
                    .regions = device.count(),
                    .journal_mark = mark_},
                   unit);
  co_return co_await device.device().Write(buffer, unit.size(), 0);
}

Task<Status> DeviceOpener::Format(DeviceRegions& device, std::uint64_t id) {
  Status status = co_await WriteSuperblock(device, id);
  if (status.ok()) status = co_await device.device().Sync();
  if (status.ok()) {
    device.id = id;
    device.formatted = true;
  }
  co_return status;
}

// A device that is being brought back has no id yet, and is told by its format.
Task<Status> DeviceOpener::Mark(tier::JournalMark mark) {
  mark_ = std::max(mark_, mark);
  const std::uint64_t number = ++marks_;
  Status told;
  for (const auto& device : media_.devices()) {
    if (number != marks_) break;
    if (!device->in_service() || device->id == 0) continue;
    const DeviceUse use(*device);
    Status written = co_await WriteSuperblock(*device, device->id);
    if (!written.ok() && device->in_service()) told = std::move(written);
  }
  co_return told;
}

// Regions beyond a smaller size that the device had in between must not come back.
Task<Status> DeviceOpener::EmptyNewRegions(DeviceRegions& device, std::uint32_t from) {
  Buffer buffer = media_.pool().Take(media_.unit());
  for (std::uint32_t i = from; i < device.count(); ++i) {
    EncodeRegionHeader({device.id, 0, 0, i}, buffer.bytes().first(media_.unit()));
    Status status =
        co_await device.device().Write(buffer, media_.unit(), device.OffsetOf(device.first() + i, 0));
    if (!status.ok()) co_return status;
  }
  co_return co_await device.device().Sync();
}

Task<Status> DeviceOpener::Start(std::size_t at, ProbeResult& probe) {
  DeviceRegions& device = *media_.devices()[at];
  const std::string& path = device.path();
  const std::uint64_t wanted = WantedBytes(at, probe);
  device.size_bytes = wanted;
  if (!probe.left_out.ok()) {
    device.device().NotOpened(std::string(probe.left_out.message()));
    media_.log().Log(LogLevel::kError, probe.left_out.message(),
                     "; the node starts without it, what is on it is lost; `cistern device bring-back ", path,
                     "` takes it in again, formatted anew");
    co_return Status();
  }
  device.device().Enter();
  std::string why = probe.foreign ? "what it held is discarded" : "it is new";
  if (!probe.superblock || !Believed(*probe.superblock, &why)) {
    // What is lost is said louder than what was never there.
    const bool ours = probe.superblock && probe.superblock->journal_id == journal_.id;
    media_.log().Log(ours ? LogLevel::kWarning : LogLevel::kInfo, "flash device ", path, ": formatted, ",
                     device.count(), " regions of ", SizeText(media_.geometry().region_bytes), "; ", why);
    co_return co_await Format(device, media_.Random());
  }
  if (const std::uint64_t whole = kSuperBytes + probe.superblock->regions * probe.superblock->region_bytes;
      probe.found_bytes < whole) {
    media_.log().Log(LogLevel::kWarning, "flash device ", path, ": has ", probe.found_bytes,
                     " bytes and had at least ", whole, "; what lay behind them is lost");
  }
  device.id = probe.superblock->device_id;
  const std::uint32_t before = probe.superblock->regions;
  if (before == device.count()) co_return Status();
  media_.log().Log(LogLevel::kInfo, "flash device ", path, ": has ", device.count(), " regions and had ",
                   before, before < device.count() ? "" : "; what lay in the others is lost");
  if (before < device.count()) {
    Status status = co_await EmptyNewRegions(device, before);
    if (!status.ok()) co_return status;
  }
  co_return co_await Format(device, device.id);
}

Status DeviceOpener::CheckCopies(const std::vector<ProbeResult>& probes) const {
  const auto ours = [&](const ProbeResult& probe) {
    return probe.superblock && probe.superblock->journal_id == journal_.id;
  };
  for (std::size_t i = 0; i < probes.size(); ++i) {
    for (std::size_t j = 0; j < i && ours(probes[i]); ++j) {
      if (!ours(probes[j]) || probes[i].superblock->device_id != probes[j].superblock->device_id) continue;
      return Status(Code::kMismatch,
                    Text("flash devices ", media_.devices()[j]->path(), " and ", media_.devices()[i]->path(),
                         ": one is a copy of the other; nothing was touched. Name the one that was used "
                         "last, or empty the other"));
    }
  }
  return Status();
}

void DeviceOpener::NoteMissing(const std::vector<ProbeResult>& probes) const {
  // What nobody could read may be any of them.
  if (std::ranges::any_of(probes, [](const ProbeResult& probe) { return !probe.left_out.ok(); })) return;
  const auto missing = std::ranges::count_if(journal_.known, [&](std::uint64_t id) {
    return std::ranges::none_of(probes, [id](const ProbeResult& probe) {
      return probe.superblock && probe.superblock->device_id == id;
    });
  });
  if (missing == 0) return;
  media_.log().Log(
      LogLevel::kWarning, "flash: ", missing, " of the ", journal_.known.size(),
      " devices that the journal knows are not among those that --flash names, or are empty; what "
      "only they held is lost");
}

Task<Status> DeviceOpener::Open() {
  std::vector<ProbeResult> probes;
  for (std::size_t i = 0; i < media_.devices().size(); ++i) {
    if (!media_.options().devices[i].absent.ok()) {
      probes.push_back(Absent(i));
      continue;
    }
    auto probe = co_await Probe(i);
    if (!probe) co_return std::move(probe.error());
    probes.push_back(std::move(*probe));
  }
  Status status = CheckCopies(probes);
  if (!status.ok()) co_return status;
  for (const ProbeResult& probe : probes) {
    if (!probe.superblock || probe.superblock->journal_id != journal_.id) continue;
    newest_mark_ = std::max(newest_mark_, probe.superblock->journal_mark);
  }
  // Formats before the journal is written anew leave the trace of the latest one. The journal's own is not
  // among them: what it was found to hold may not be durable yet, and is told once it is (Mark).
  mark_ = newest_mark_;
  ChooseRegionBytes(probes);
  for (std::size_t i = 0; i < probes.size() && status.ok(); ++i) status = CheckProbe(i, probes[i]);
  if (!status.ok()) co_return status;
  for (std::size_t i = 0; i < probes.size() && status.ok(); ++i) status = co_await Create(i, probes[i]);
  if (!status.ok()) {
    for (ProbeResult& probe : probes) {
      if (probe.made) (void)media_.loop().Remove(probe.file_path);
    }
    co_return status;
  }
  NoteMissing(probes);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < probes.size(); ++i) total += RegionsIn(WantedBytes(i, probes[i]));
  if (total >= kNoRegion) {
    co_return Status(Code::kInvalid, Text("flash: has ", total, " regions and the limit is ", kNoRegion,
                                          "; take larger regions"));
  }
  std::uint32_t first = 0;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    DeviceRegions& device = *media_.devices()[i];
    device.SetRegions(first, static_cast<std::uint32_t>(RegionsIn(WantedBytes(i, probes[i]))));
    first = device.end();
  }
  for (std::size_t i = 0; i < probes.size() && status.ok(); ++i) {
    status = co_await Start(i, probes[i]);
    Device& device = media_.devices()[i]->device();
    if (!status.ok() && !journal_.known.empty()) device.FailedFor("it could not be formatted", status);
    if (!device.in_service()) status = Status();  // which was said; the others go on
    if (!status.ok()) status = Named(device.path(), status);
  }
  co_return status;
}

Status DeviceOpener::MayComeBack(const DeviceRegions& device) const {
  if (device.in_service()) {
    return Status(Code::kInvalid, Text("flash device ", device.path(), ": is in service"));
  }
  if (device.count() == 0) {
    return Status(Code::kInvalid, Text("flash device ", device.path(),
                                       ": was not there when the node started, and its size is not said: "
                                       "restart the node, or name it with its size"));
  }
  if (!device.forgotten) {
    return Status(Code::kBusy,
                  Text("flash device ", device.path(), ": what was on it is being forgotten; try again"));
  }
  if (device.in_use()) {
    return Status(Code::kBusy, Text("flash device ", device.path(), ": ", device.device().in_flight(),
                                    " transfers from before have not ended; try again when they have"));
  }
  return Status();
}

Task<Status> DeviceOpener::BringBack(std::string path) {
  const auto devices = media_.devices();
  std::size_t at = 0;
  while (at < devices.size() && devices[at]->path() != path) ++at;
  if (at == devices.size()) {
    co_return Status(Code::kMiss, Text("flash device ", path, ": there is none of this path"));
  }
  DeviceRegions& device = *devices[at];
  Status status = MayComeBack(device);
  if (!status.ok()) co_return status;
  DeviceUse use(device);  // once at a time
  const std::uint64_t taken_out = device.taken_out;
  (void)device.device().CloseFile();
  auto probe = co_await Probe(at);
  status = probe ? CheckProbe(at, *probe) : probe.error();
  if (status.ok()) status = co_await Create(at, *probe);  // does nothing with one that is left out
  if (status.ok()) status = probe->left_out;
  if (status.ok() && RegionsIn(WantedBytes(at, *probe)) < device.count()) {
    status = Status(Code::kInvalid, Text("flash device ", path, ": is smaller than it was"));
  }
  const auto left = [&device](Status why) {
    // What hangs keeps the file until it has ended.
    if (!device.device().busy()) (void)device.device().CloseFile();
    return why;
  };
  if (!status.ok()) co_return left(std::move(status));
  device.Clear();
  // The device has no id that the journal could be told until it is formatted, and nothing is written to it.
  device.id = 0;
  for (std::uint32_t i = 0; i < device.count(); ++i) {
    device.Reset(device.first() + i);
    if (i % 256 == 255) co_await Yield();
  }
  if (device.taken_out != taken_out) {
    co_return left(Status(Code::kInvalid, Text("flash device ", path, ": was taken out again meanwhile")));
  }
  device.device().Enter();
  status = co_await Format(device, media_.Random());
  if (!status.ok()) {
    device.device().FailedFor("it could not be formatted", status);
    co_return Named(path, status);
  }
  for (std::uint32_t i = 0; i < device.count(); ++i) {
    device.Settle(device.first() + i);
    if (i % 256 == 255) co_await Yield();
  }
  if (!device.in_service()) {
    co_return Status(Code::kIoError,
                     Text("flash device ", path, ": is out of service again: ", device.device().why()));
  }
  media_.log().Log(LogLevel::kInfo, "flash device ", path, ": is back in service, formatted anew");
  co_return Status();
}

}  // namespace cistern::flash
