// SPDX-License-Identifier: Apache-2.0
// Opening devices: looking at all of them, then making, formatting and resizing them. Nothing is touched
// before all were looked at.
#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/event.h"
#include "base/format.h"
#include "base/units.h"
#include "flash/impl.h"

namespace cistern {

using flash::Buffer;

namespace {

constexpr std::uint64_t kLookBytes = 1u << 20;
constexpr std::uint32_t kMinRegions = 4;
// A predecessor that was killed holds the lock until its last request has ended in the kernel (R8).
constexpr std::int64_t kLockWaitUs = 2'000'000;
constexpr std::int64_t kLockTryUs = 10'000;

bool AllZero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

Status Named(const std::string& path, const Status& status) {
  return Status(status.code(), Text("flash device ", path, ": ", status.message()));
}

}  // namespace

Task<Status> Tier::Impl::Lock(File& file, const std::string& path) {
  const Instant until = parts_.loop.clock().Now().PlusUs(kLockWaitUs);
  for (;;) {
    const Status status = parts_.loop.Lock(file);
    if (status.code() != Code::kBusy) co_return status.ok() ? Status() : Named(path, status);
    if (parts_.loop.clock().Now() >= until) {
      co_return Status(Code::kBusy, Text("flash device ", path,
                                         ": another node uses it, or a request of one "
                                         "that was killed has not ended in ",
                                         kLockWaitUs / 1000, " ms: ", status.message()));
    }
    (void)co_await SleepUntil(parts_.loop.clock().Now().PlusUs(kLockTryUs));
  }
}

Status Tier::Impl::CheckLimits(const File& file, const std::string& path) const {
  const auto limits = file.Direct();
  if (!limits) return Named(path, limits.error());
  const std::uint32_t needs = std::max(limits->memory_align, limits->offset_align);
  if (needs != 0 && options_.unit % needs == 0) return Status();
  return Status(Code::kInvalid, Text("flash device ", path, ": needs transfers aligned to ", needs,
                                     " bytes and the arena's alignment is ", options_.unit, "; set it to ",
                                     needs, " (up to 4096) or take another device"));
}

Task<Result<Tier::Impl::Look>> Tier::Impl::LookAt(std::size_t at) {
  const FlashDeviceOptions& device = options_.devices[at];
  Look look;
  look.file_path = device.path + "/flash";
  auto file = parts_.loop.Open(look.file_path, OpenMode::kDirect);
  if (!file) {
    auto whole = parts_.loop.Open(device.path, OpenMode::kDirect);
    if (!whole) {
      look.create = true;  // if it cannot be made, making it says why
      co_return look;
    }
    const auto limits = whole->Direct();
    if (!limits || !limits->block_device) {
      co_return Error(Code::kInvalid,
                      Text("flash device ", device.path, ": is neither a directory nor a block device"));
    }
    look.file_path = device.path;
    look.block_device = true;
    file = std::move(whole);
  }
  const auto size = file->Size();
  if (!size) co_return Error(Named(device.path, size.error()));
  look.size_bytes = *size;
  Status status = co_await Lock(*file, device.path);
  // Who has had devices before may be the successor of the one whose request has not ended (R8). Whoever
  // starts for the first time has named another node's device.
  if (status.code() == Code::kBusy && !known_.empty()) {
    look.taken = std::move(status);
    co_return look;
  }
  if (status.ok()) status = CheckLimits(*file, device.path);
  if (!status.ok()) co_return std::unexpected(std::move(status));

  Buffer buffer = pool_.Take(kLookBytes);
  const auto bytes =
      buffer.bytes().first(std::min<std::uint64_t>(*size, kLookBytes) / options_.unit * options_.unit);
  if (!bytes.empty()) status = co_await file->ReadAll(bytes, 0);
  if (!status.ok()) co_return Error(Named(device.path, status));
  const auto superblock = flash::DecodeSuperblock(bytes);
  if (superblock) {
    look.superblock = *superblock;
  } else if (!AllZero(bytes)) {
    look.foreign = true;
    if (!options_.discard_foreign) {
      const bool version = superblock.error() == flash::FlashFault::kVersion;
      co_return Error(
          Code::kMismatch,
          Text("flash device ", device.path, ": ",
               version ? "its format is another version than this node's"
               : superblock.error() == flash::FlashFault::kCrc ? "its superblock is damaged"
                                                               : "holds data that is not Cistern's",
               "; nothing was touched. Take another place, or discard what it holds "
               "(--discard-foreign)"));
    }
  }
  look.file = std::move(*file);
  co_return look;
}

std::uint64_t Tier::Impl::WantedBytes(std::size_t at, const Look& look) const {
  const std::uint64_t option = options_.devices[at].size_bytes;
  return option == 0 && look.block_device ? look.size_bytes : option;
}

// As the devices are formatted; else by their size.
Status Tier::Impl::ChooseRegionBytes(const std::vector<Look>& looks) {
  region_bytes_ = options_.region_bytes;
  std::uint64_t smallest = UINT64_MAX;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    smallest = std::min(smallest, WantedBytes(i, looks[i]));
    std::string why;
    const auto& superblock = looks[i].superblock;
    if (region_bytes_ == 0 && superblock && superblock->region_bytes >= kMinRegionBytes &&
        superblock->region_bytes <= kMaxRegionBytes && superblock->region_bytes % flash::kSuperBytes == 0) {
      region_bytes_ = superblock->region_bytes;
    }
  }
  if (region_bytes_ == 0) region_bytes_ = RegionBytesFor(smallest);
  return Status();
}

Status Tier::Impl::CheckLook(std::size_t at, const Look& look) const {
  const FlashDeviceOptions& device = options_.devices[at];
  const std::uint64_t wanted = WantedBytes(at, look);
  const std::uint64_t least = flash::kSuperBytes + kMinRegions * region_bytes_;
  if (wanted < least) {
    return Status(Code::kInvalid,
                  Text("flash device ", device.path, ": size is ", SizeText(wanted), " and must be at least ",
                       SizeText(least), " (", kMinRegions, " regions of ", SizeText(region_bytes_), ")"));
  }
  if (look.block_device && wanted > look.size_bytes) {
    return Status(Code::kInvalid, Text("flash device ", device.path, ": size is ", SizeText(wanted),
                                       " and the device has ", SizeText(look.size_bytes)));
  }
  return Status();
}

bool Tier::Impl::Believed(const flash::Superblock& superblock, std::string* why) const {
  if (superblock.journal_id != journal_id_) {
    *why = "it belonged to another store";
  } else if (std::ranges::find(known_, superblock.device_id) == known_.end()) {
    *why = "the journal does not know it";
  } else if (superblock.unit != options_.unit) {
    *why = Text("its unit is ", superblock.unit, " bytes and the arena's alignment is ", options_.unit);
  } else if (superblock.region_bytes != region_bytes_) {
    *why =
        Text("its regions have ", superblock.region_bytes, " bytes and those of this tier ", region_bytes_);
  } else {
    return true;
  }
  return false;
}

// The file is there and real; where that fails it is gone again.
Task<Status> Tier::Impl::Create(std::size_t at, Look& look) {
  if (!look.taken.ok()) co_return Status();
  const std::string& path = options_.devices[at].path;
  const std::uint64_t wanted = WantedBytes(at, look);
  if (look.create) {
    auto made = parts_.loop.Open(look.file_path, OpenMode::kDirectCreate);
    if (!made) co_return Named(path, made.error());
    look.file = std::move(*made);
    Status status = co_await Lock(look.file, path);
    if (status.ok()) status = CheckLimits(look.file, path);
    if (status.ok()) status = parts_.loop.Preallocate(look.file, wanted);
    if (!status.ok()) {
      look.file = File();
      (void)parts_.loop.Remove(look.file_path);
      co_return Named(path, status);
    }
    status = co_await parts_.loop.SyncDirectory(path);
    if (!status.ok()) co_return Named(path, status);
    look.size_bytes = wanted;
  } else if (!look.block_device && look.size_bytes < wanted) {
    const Status status = parts_.loop.Preallocate(look.file, wanted);
    if (!status.ok()) co_return Named(path, status);
    look.size_bytes = wanted;
  }
  co_return Status();
}

Task<Status> Tier::Impl::Format(Member& member, std::uint64_t id) {
  Buffer buffer = pool_.Take(options_.unit);
  const auto unit = buffer.bytes().first(options_.unit);
  flash::EncodeSuperblock({id, journal_id_, options_.unit, region_bytes_, member.count}, unit);
  Status status = co_await member.device.Write(std::span<const std::byte>(unit), 0);
  if (status.ok()) status = co_await member.device.Sync();
  if (status.ok()) member.id = id;
  co_return status;
}

// What a device held beyond a smaller size that it had in between must not come back.
Task<Status> Tier::Impl::EmptyNewRegions(Member& member, std::uint32_t from) {
  Buffer buffer = pool_.Take(options_.unit);
  const auto unit = buffer.bytes().first(options_.unit);
  for (std::uint32_t i = from; i < member.count; ++i) {
    flash::EncodeRegionHeader({member.id, 0, 0, i}, unit);
    Status status =
        co_await member.device.Write(std::span<const std::byte>(unit), OffsetOf(member, member.first + i, 0));
    if (!status.ok()) co_return status;
  }
  co_return co_await member.device.Sync();
}

Task<Status> Tier::Impl::Start(std::size_t at, Look& look) {
  Member& member = *members_[at];
  const std::string& path = member.device.path();
  const std::uint64_t wanted = WantedBytes(at, look);
  member.file_path = look.file_path;
  member.block_device = look.block_device;
  member.size_bytes = wanted;
  if (!look.taken.ok()) {
    member.device.NotOpened(std::string(look.taken.message()));
    parts_.log.Log(LogLevel::kError, look.taken.message(),
                   "; the node starts without it, what is on it is lost; `cistern device bring-back ", path,
                   "` takes it in again, formatted anew");
    co_return Status();
  }
  member.device.Begin(std::move(look.file));
  std::string why = look.foreign ? "what it held is discarded" : "it is new";
  if (!look.superblock || !Believed(*look.superblock, &why)) {
    parts_.log.Log(LogLevel::kInfo, "flash device ", path, ": formatted, ", member.count, " regions of ",
                   SizeText(region_bytes_), "; ", why);
    co_return co_await Format(member, parts_.random());
  }
  member.id = look.superblock->device_id;
  const std::uint32_t before = look.superblock->regions;
  if (before == member.count) co_return Status();
  parts_.log.Log(LogLevel::kInfo, "flash device ", path, ": has ", member.count, " regions and had ", before,
                 before < member.count ? "" : "; what lay in the others is lost");
  if (before < member.count) {
    Status status = co_await EmptyNewRegions(member, before);
    if (!status.ok()) co_return status;
  }
  co_return co_await Format(member, member.id);
}

Task<Status> Tier::Impl::Open() {
  std::vector<Look> looks;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    auto look = co_await LookAt(i);
    if (!look) co_return std::move(look.error());
    looks.push_back(std::move(*look));
  }
  Status status = ChooseRegionBytes(looks);
  for (std::size_t i = 0; i < looks.size() && status.ok(); ++i) status = CheckLook(i, looks[i]);
  if (!status.ok()) co_return status;
  for (std::size_t i = 0; i < looks.size() && status.ok(); ++i) status = co_await Create(i, looks[i]);
  if (!status.ok()) {
    for (Look& look : looks) {
      if (!look.create || !look.file.valid()) continue;
      look.file = File();
      (void)parts_.loop.Remove(look.file_path);
    }
    co_return status;
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < looks.size(); ++i) {
    Member& member = *members_[i];
    member.first = static_cast<std::uint32_t>(total);
    member.count =
        static_cast<std::uint32_t>((WantedBytes(i, looks[i]) - flash::kSuperBytes) / region_bytes_);
    total += member.count;
  }
  if (total >= kNoRegion) {
    co_return Status(Code::kInvalid, Text("flash: has ", total, " regions and the limit is ", kNoRegion,
                                          "; take larger regions"));
  }
  regions_ = std::vector<Region>(total);
  for (std::size_t i = 0; i < looks.size() && status.ok(); ++i) {
    status = co_await Start(i, looks[i]);
    if (!status.ok()) status = Named(members_[i]->device.path(), status);
  }
  co_return status;
}

// Its regions are all free: the id is new, so nothing on it is believed.
Task<Status> Tier::Impl::BringBack(std::string path) {
  std::size_t at = 0;
  while (at < members_.size() && members_[at]->device.path() != path) ++at;
  if (at == members_.size())
    co_return Status(Code::kMiss, Text("flash device ", path, ": there is none of this path"));
  Member& member = *members_[at];
  if (member.device.in_service())
    co_return Status(Code::kInvalid, Text("flash device ", path, ": is in service"));
  if (!member.forgotten) {
    co_return Status(Code::kBusy,
                     Text("flash device ", path, ": what was on it is being forgotten; try again"));
  }
  if (member.users > 0 || member.device.busy() || !member.writing.empty()) {
    co_return Status(Code::kBusy, Text("flash device ", path, ": ", member.device.in_flight(),
                                       " transfers from before have not ended; try again when they have"));
  }
  User user(member);  // once at a time
  member.device.CloseFile();
  auto look = co_await LookAt(at);
  Status status = look ? CheckLook(at, *look) : look.error();
  if (status.ok()) status = look->taken;
  if (status.ok()) status = co_await Create(at, *look);
  if (status.ok() && (WantedBytes(at, *look) - flash::kSuperBytes) / region_bytes_ < member.count) {
    status = Status(Code::kInvalid, Text("flash device ", path, ": is smaller than it was"));
  }
  if (!status.ok()) co_return status;
  member.free.clear();
  member.closed.clear();
  member.empty.clear();
  member.sequences.clear();
  member.live_bytes = 0;
  // Until it is formatted it has no name that the journal could be told, and nothing is written to it.
  member.id = 0;
  for (std::uint32_t i = 0; i < member.count; ++i) {
    regions_[member.first + i] = Region();
    if (i % 256 == 255) co_await Yield();
  }
  member.file_path = look->file_path;
  member.device.Begin(std::move(look->file));
  status = co_await Format(member, parts_.random());
  if (!status.ok()) {
    member.device.FailedFor("it could not be formatted", status);
    co_return Named(path, status);
  }
  for (std::uint32_t i = 0; i < member.count; ++i) {
    member.free.push_back(member.first + i);
    if (i % 256 == 255) co_await Yield();
  }
  parts_.log.Log(LogLevel::kInfo, "flash device ", path, ": is back in service, formatted anew");
  co_return Status();
}

}  // namespace cistern
