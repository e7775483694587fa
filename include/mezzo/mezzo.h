#pragma once

/// All of mezzo's core: autocast, gradient scaling, master weights, optimizers. Needs LibTorch alone.

#include "mezzo/amp/amp_optimizer.h"
#include "mezzo/amp/autocast_guard.h"
#include "mezzo/amp/cpu_half_matmul.h"
#include "mezzo/amp/grad_scaler.h"
#include "mezzo/amp/master_weights.h"
#include "mezzo/amp/module_scope.h"
#include "mezzo/amp/op_lists.h"
#include "mezzo/optim/adam.h"
#include "mezzo/optim/clip_grad.h"
#include "mezzo/optim/lamb.h"
#include "mezzo/optim/lr_schedule.h"
#include "mezzo/optim/metric_schedule.h"
#include "mezzo/optim/optimizer.h"
#include "mezzo/optim/param_groups.h"
#include "mezzo/optim/sgd.h"
#include "mezzo/version.h"
