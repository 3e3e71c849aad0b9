/* kind.h - what a request asks the engine for. The numbers are in the state store: they stay. */
#ifndef TW_SERVE_KIND_H
#define TW_SERVE_KIND_H

enum tw_kind {
    TW_KIND_CREATE_MODEL = 1,
    TW_KIND_FORWARD_BACKWARD = 2,       /* forward, too: a flag of the request says so */
    TW_KIND_OPTIM_STEP = 3,
    TW_KIND_SAVE_WEIGHTS = 4,
    TW_KIND_SAVE_SAMPLER = 5,           /* save_weights_for_sampler: named, ephemeral, inflight */
    TW_KIND_SAVE_EXTERNAL = 6,
    TW_KIND_LOAD_WEIGHTS = 7,           /* into a model that is there */
    TW_KIND_LOAD_CREATE = 8,            /* load_weights that makes the model */
    TW_KIND_UNLOAD = 9,
    TW_KIND_SAMPLE = 10,
    TW_KIND_CUSTOM_LOSS = 11
};

#endif
