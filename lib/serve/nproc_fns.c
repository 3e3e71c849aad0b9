/* nproc_fns.c - what may be called: nothing else is */
#include "nproc.h"

#define F(type, name, is_long, fn)                                                                 \
    {                                                                                              \
        TW_NP_##type, name, is_long, fn                                                            \
    }

const struct tw_np_fn tw_np_fns[] = {
        F(DATASET, "create", true, tw_np_data_create),
        F(DATASET, "add_dataset", true, tw_np_data_add),
        F(DATASET, "mix_dataset", true, tw_np_data_mix),
        F(DATASET, "set_template", true, tw_np_data_template),
        F(DATASET, "map", true, tw_np_data_map),
        F(DATASET, "filter", true, tw_np_data_filter),
        F(DATASET, "encode", true, tw_np_data_encode),
        F(DATASET, "check", true, tw_np_data_check),
        F(DATASET, "cast_column", false, tw_np_data_cast),
        F(DATASET, "pack_dataset", true, tw_np_data_pack),
        F(DATASET, "save_as", true, tw_np_data_save),
        F(DATASET, "flush_save", true, tw_np_data_flush),
        F(DATASET, "__getitem__", false, tw_np_data_item),
        F(DATASET, "__len__", false, tw_np_data_len),
        F(DATASET, "__iter__", true, tw_np_data_iter),
        F(DATASET, "__next__", false, tw_np_data_next),
        F(LOADER, "create", false, tw_np_loader_create),
        F(LOADER, "set_processor", false, tw_np_loader_processor),
        F(LOADER, "skip_consumed_samples", false, tw_np_loader_skip),
        F(LOADER, "resume_from_checkpoint", false, tw_np_loader_skip),
        F(LOADER, "get_state", false, tw_np_loader_state),
        F(LOADER, "__len__", false, tw_np_loader_len),
        F(LOADER, "__iter__", false, tw_np_loader_iter),
        F(LOADER, "__next__", false, tw_np_loader_next),
        F(PREPROCESSOR, "create", false, tw_np_preprocessor_create),
        F(PREPROCESSOR, "__call__", true, tw_np_preprocessor_call),
        F(PROCESSOR, "create", false, tw_np_processor_create),
        F(PROCESSOR, "__call__", false, tw_np_processor_call),
        F(REWARD, "create", false, tw_np_reward_create),
        F(REWARD, "__call__", true, tw_np_reward_call),
        F(TEMPLATE, "create", true, tw_np_template_create),
        F(TEMPLATE, "encode", true, tw_np_template_encode),
        F(TEMPLATE, "batch_encode", true, tw_np_template_batch),
        F(TEMPLATE, "decode", false, tw_np_template_decode),
        {0},
};

void tw_np_impl_free(struct tw_np_obj *o)
{
    switch (o->type) {
    case TW_NP_DATASET:
        tw_np_data_free(o->impl);
        break;
    case TW_NP_LOADER:
        tw_np_loader_free(o->impl);
        break;
    case TW_NP_PREPROCESSOR:
        tw_np_proc_unref(o->impl);
        break;
    case TW_NP_PROCESSOR:
        tw_np_collate_unref(o->impl);
        break;
    case TW_NP_REWARD:
        tw_reward_fn_close(o->impl);
        break;
    case TW_NP_TEMPLATE:
        tw_np_tmpl_unref(o->impl);
        break;
    }
}
