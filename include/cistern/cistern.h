// SPDX-License-Identifier: Apache-2.0
// All of Cistern's public API.
#pragma once

#include "cistern/key.h"
#include "cistern/lease.h"
#include "cistern/namespace.h"
#include "cistern/options.h"
#include "cistern/policy.h"
#include "cistern/status.h"
#include "cistern/store.h"
#include "cistern/ticket.h"
#include "cistern/where.h"
